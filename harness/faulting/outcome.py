"""What a fault did to a run, beside the undisturbed run of the same schedule. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]  # of requests.parquet
Tokens = Mapping[int, Sequence[int]]  # ids by request, where they are known


@dataclass(frozen=True, slots=True)
class Harm:
    """`lost`: requests that did not complete, and did undisturbed. `wrong`: those with other token
    ids than undisturbed; None: ids are not known. `compared`: requests whose ids were. `hurt`:
    requests that waited or were served when the first fault struck. `recover_s`: see `recovery_s`.
    """

    lost: int
    wrong: int | None
    compared: int
    hurt: int
    recover_s: float


def harm(
    disturbed: Sequence[Row], undisturbed: Sequence[Row], strike_s: float, tokens: Tokens,
    reference: Tokens, late: float,
) -> Harm:  # fmt: skip
    """Both runs have the same requests in one order."""
    lost = [
        row for row, before in zip(disturbed, undisturbed, strict=True)
        if before["status"] == "completed" and row["status"] != "completed"
    ]  # fmt: skip
    compared = [
        row["request_id"] for row in disturbed
        if row["status"] == "completed" and row["request_id"] in tokens
        and row["request_id"] in reference
    ]  # fmt: skip
    wrong = sum(list(tokens[number]) != list(reference[number]) for number in compared)
    hurt = sum(_under_way(row, strike_s) for row in disturbed)
    recover_s = recovery_s(disturbed, undisturbed, strike_s, late)
    return Harm(len(lost), wrong if compared else None, len(compared), hurt, recover_s)


def recovery_s(
    disturbed: Sequence[Row], undisturbed: Sequence[Row], strike_s: float, late: float
) -> float:
    """From the strike until the last token that was waited for more than `late` times as long as
    any token of the undisturbed run: a first token since its request's arrival, another since the
    one before. 0: there is none."""
    longest = dict.fromkeys((True, False), 0.0)
    for _, waited_s, first in _waits(undisturbed):
        longest[first] = max(longest[first], waited_s)
    late_s = [
        at_s - strike_s
        for at_s, waited_s, first in _waits(disturbed)
        if at_s > strike_s and waited_s > longest[first] * late
    ]
    return max(late_s, default=0.0)


def _waits(rows: Sequence[Row]) -> Iterator[tuple[float, float, bool]]:
    """Yields of every token when it came, how long it was waited for, and whether it is a first."""
    for row in rows:
        before_s, first = row["arrival_s"], True
        for at_s in row["token_times_s"]:
            yield at_s, at_s - before_s, first
            before_s, first = at_s, False


def _under_way(row: Row, at_s: float) -> bool:
    """Whether the request had come by then, and had not all of its tokens."""
    last_s = row["token_times_s"][-1] if row["token_times_s"] else None
    ended = row["status"] == "completed" and last_s is not None and last_s <= at_s
    return bool(row["arrival_s"] <= at_s) and not ended
