"""Sessions in a schedule: which requests are turns of one conversation, and how long its user
thinks before each. Columns of a schedule that has sessions; others have none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.request import Request, Turn

Ints = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Sessions:
    """One entry per request, in the schedule's order, which is the order of a session's turns too.
    The arrival of a later turn in the schedule is the earliest that there can be: what a run uses
    is the end of the answer before and `think_s`."""

    session: Ints
    think_s: npt.NDArray[np.float64]  # from the end of the answer before; 0 of a first turn

    def new_tokens(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """Of each prompt the tokens behind what was said before."""
        before = previous_rows(self.session)
        said = (prompt_tokens + output_tokens)[before]
        return np.where(before < 0, prompt_tokens, prompt_tokens - said)

    def check(self, prompt_tokens: Ints, output_tokens: Ints) -> None:
        """ValueError for columns that are no sessions of these requests."""
        if not len(self.session) == len(self.think_s) == len(prompt_tokens):
            raise ValueError("session and think_s must be one number for each row")
        wrong = ~(np.isfinite(self.think_s) & (self.think_s >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"row {row}: think_s must be at least 0, got {self.think_s[row]}")
        new = self.new_tokens(prompt_tokens, output_tokens)
        if (new < 1).any():
            row = int(np.argmax(new < 1))
            raise ValueError(
                f"row {row}: its prompt of {prompt_tokens[row]} tokens must be longer than prompt "
                f"and answer of the turn before, {prompt_tokens[row] - new[row]} tokens"
            )

    def join(self, requests: Sequence[Request]) -> None:
        """Tells each of `requests`, one per row, where it stands in its session."""
        tokens = [
            np.array([getattr(request, name) for request in requests], np.int64)
            for name in ("prompt_tokens", "output_tokens")
        ]
        columns = (
            self.session,
            previous_rows(self.session),
            self.think_s,
            self.new_tokens(*tokens),
        )
        rows = zip(requests, *(column.tolist() for column in columns), strict=True)
        for request, session, before, think_s, new_tokens in rows:
            previous = requests[before] if before >= 0 else None
            number = 0 if previous is None or previous.turn is None else previous.turn.number + 1
            request.turn = Turn(session, number, think_s, new_tokens, previous)


def previous_rows(session: Ints) -> Ints:
    """The row of the turn before, for each row of `session`; -1: it is its session's first."""
    order = np.argsort(session, kind="stable")
    later = session[order][1:] == session[order][:-1]
    rows = np.full(len(order), -1, np.int64)
    rows[order[1:][later]] = order[:-1][later]
    return rows
