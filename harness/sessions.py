"""Sessions in a schedule: which requests are turns of one conversation, how long its user thinks
before each, and which other sessions a turn waits for. Columns of a schedule that has sessions;
others have none."""

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
    The arrival of a row that waits is, in the schedule, the earliest that there can be: what a run
    uses is the last end that it waits for and `think_s`."""

    session: Ints
    think_s: npt.NDArray[np.float64]  # from the last end that a row waits for; 0 where it has none
    # Besides the turn before: rows of other sessions, all of them earlier ones, that must have
    # ended too. A session's first turn names the one that begins it first. None: no row has any
    waits_for: list[tuple[int, ...]] | None = None

    def earlier(self) -> list[tuple[int, ...]]:
        """The rows that must have ended before each row."""
        before = previous_rows(self.session).tolist()
        waits = self.waits_for or [()] * len(before)
        return [(b, *rows) if b >= 0 else rows for b, rows in zip(before, waits, strict=True)]

    def without(self, out: npt.NDArray[np.bool_]) -> tuple[Ints, Sessions]:
        """Which rows stay, and their columns. With a row that is `out` goes all that it begins: its
        session's later turns, and sessions. What else waits for it waits for what it waited for."""
        stand_in, kept = list[tuple[int, ...]](), list[int]()  # by their rows once others are gone
        waits = list[tuple[int, ...]]()
        before, out = previous_rows(self.session), out.copy()
        for row, rows in enumerate(self.earlier()):
            left = dict.fromkeys(each for other in rows for each in stand_in[other])
            if out[row] or (rows and out[rows[0]]):
                out[row] = True
                stand_in.append(tuple(left))
                continue
            if before[row] >= 0:
                left.pop(stand_in[rows[0]][0])
            stand_in.append((len(kept),))
            kept.append(row)
            waits.append(tuple(left))
        keep = np.array(kept, np.int64)
        return keep, Sessions(self.session[keep], self.think_s[keep], waits if any(waits) else None)

    def new_tokens(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        """The tokens of each prompt behind what was said before."""
        before = previous_rows(self.session)
        said = (prompt_tokens + output_tokens)[before]
        return np.where(before < 0, prompt_tokens, prompt_tokens - said)

    def check(self, prompt_tokens: Ints, output_tokens: Ints) -> None:
        """ValueError for columns that are no sessions of these requests."""
        columns = (self.session, self.think_s, self.waits_for or prompt_tokens)
        if {len(column) for column in columns} != {len(prompt_tokens)}:
            raise ValueError("session, think_s and waits_for must be one value for each row")
        wrong = ~(np.isfinite(self.think_s) & (self.think_s >= 0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"row {row}: think_s must be at least 0, got {self.think_s[row]}")
        for row, rows in enumerate(self.waits_for or ()):
            if not all(0 <= each < row for each in rows):
                raise ValueError(f"row {row}: waits_for must be rows before it, got {list(rows)}")
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
        waits = self.waits_for or [()] * len(requests)
        rows = zip(requests, *(column.tolist() for column in columns), waits, strict=True)
        for request, session, before, think_s, new_tokens, others in rows:
            previous = requests[before] if before >= 0 else None
            number = 0 if previous is None or previous.turn is None else previous.turn.number + 1
            waits_for = tuple(requests[other] for other in others)
            request.turn = Turn(session, number, think_s, new_tokens, previous, waits_for)


def previous_rows(session: Ints) -> Ints:
    """The row of the turn before, for each row of `session`; -1: it is its session's first."""
    order = np.argsort(session, kind="stable")
    later = session[order][1:] == session[order][:-1]
    rows = np.full(len(order), -1, np.int64)
    rows[order[1:][later]] = order[:-1][later]
    return rows
