"""A server's iterations, rebuilt from the token times that its clients saw.

Under continuous batching every running request gets one token an iteration, so that all streams
tick together: a token's iteration is that of its stream's first token and its place in the
stream. Only the first token's has to be found; then each iteration's end is its earliest stamp,
its time the gap to the one before, and its content follows from FCFS under the token budget.

Knows nothing of HTTP. Holds for a server without preemption or speculative decoding, that has
prompts computed before their turn for none but the next in line, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.calibrate.profiles import Floats
from harness.calibrate.serving import Iterations, Work


@dataclass(frozen=True, slots=True)
class Stream:
    """What a client saw of one request: one token at least."""

    prompt_tokens: int
    sent_s: float
    times_s: Floats


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one iteration, as the server resolved it."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The iterations of all streams. `first[i]`: the iteration of stream i's first token.
    `ends_s`: the end of each iteration."""

    first: list[int]
    ends_s: Floats


def timeline(streams: Sequence[Stream]) -> Timeline:
    """Numbers the iterations of one busy or idle stretch of serving, in the order of time."""
    tokens = sorted((t, i, n) for i, s in enumerate(streams) for n, t in enumerate(s.times_s))
    first: dict[int, int] = {}
    ends_s: list[float] = []
    running: set[int] = set()  # streams that have begun; those that have ended leave at need
    for time_s, i, n in tokens:
        if n == 0:
            now = len(ends_s) - 1
            running = {r for r in running if first[r] + len(streams[r].times_s) > now}
            first[i] = _first_iteration(streams, first, running, i, now)
            running.add(i)
        if first[i] + n == len(ends_s):
            ends_s.append(time_s)
    return Timeline([first[i] for i in range(len(streams))], np.array(ends_s))


def _first_iteration(
    streams: Sequence[Stream], first: dict[int, int], running: set[int], new: int, now: int
) -> int:
    """The iteration from which the tokens of stream `new` come nearest to those of the stream that
    lasts longest.

    `now`: the latest iteration with a token so far; the candidates are around it.
    """
    if not running:
        return now + 1
    leader = max(running, key=lambda r: first[r] + len(streams[r].times_s))
    own, others, begun = streams[new].times_s, streams[leader].times_s, first[leader]
    if begun + len(others) == now + 1:  # it has ended: was that in the same iteration?
        two = own[:2] if len(own) > 1 else others[-2:]  # an iteration apart, if it is two
        same = own[0] - others[-1] <= (two[-1] - two[0]) / 2
        return now if same else now + 1

    def apart_s(candidate: int) -> float:
        beside = others[candidate - begun : candidate - begun + len(own)]
        return float(np.median(np.abs(own[: len(beside)] - beside)))

    return min(range(max(begun, now - 1), now + 2), key=apart_s)


def misplaced(streams: Sequence[Stream], found: Timeline) -> int:
    """The number of tokens that came after the end of the iteration behind theirs: none in true
    lockstep."""
    nexts_s = np.append(found.ends_s[1:], np.inf)
    return sum(
        int((stream.times_s > nexts_s[begun : begun + len(stream.times_s)]).sum())
        for stream, begun in zip(streams, found.first, strict=True)
    )


def works(streams: Sequence[Stream], found: Timeline, budget: Budget) -> list[Work]:
    """The content of every iteration of `found`."""
    num = len(found.ends_s)
    decodes, context = np.zeros(num, int), np.zeros(num, int)
    for stream, begun in zip(streams, found.first, strict=True):
        steps = np.arange(1, len(stream.times_s))
        decodes[begun + steps] += 1
        context[begun + steps] += stream.prompt_tokens + steps
    chunks = _chunks(streams, found, budget, decodes)
    return [Work.of(chunks[j], int(decodes[j]), int(context[j])) for j in range(num)]


def _chunks(
    streams: Sequence[Stream], found: Timeline, budget: Budget, decodes: npt.NDArray[np.int_]
) -> list[list[tuple[int, int]]]:
    """The prompts in each iteration, as (tokens computed before, tokens).

    First those that it completed; what they left of the budget went to the next in line, if that
    had come and there was a seat. The line is that of the first tokens: answers keep the order.
    """
    line = sorted(range(len(streams)), key=lambda i: (found.first[i], streams[i].times_s[0]))
    made: list[list[tuple[int, int]]] = []
    head = before = 0  # the next in line, and how much of it is computed
    begun_s = 0.0  # the iteration began then or later
    for j, end_s in enumerate(found.ends_s):
        left, chunks = budget.max_num_batched_tokens - int(decodes[j]), []
        while head < len(line) and found.first[line[head]] == j:
            stream = streams[line[head]]
            chunks.append((before, stream.prompt_tokens - before))
            left, head, before = left - chunks[-1][1], head + 1, 0
            begun_s = max(begun_s, stream.sent_s)
        seats = budget.max_num_seqs - int(decodes[j]) - len(chunks)
        if head < len(line) and seats > 0:
            stream = streams[line[head]]
            if stream.sent_s <= begun_s and 0 < left < stream.prompt_tokens - before:
                chunks.append((before, left))
                before += left
        made.append(chunks)
        begun_s = float(end_s)
    return made


def iterations(works: Sequence[Work], ends_s: Floats) -> Iterations:
    """The iterations that followed another at once, which those with decodes did.

    Decodes of one batch are one row of several steps: a late stamp then moves time between steps,
    not into the row. Iterations whose tokens came in one chunk cannot be told apart: left out.
    """
    rows: list[tuple[float, ...]] = []
    j = 1
    while j < len(works):
        work, start = works[j], j
        j += 1
        # As long as no prompt comes and no request ends.
        while (
            j < len(works)
            and not (work.chunks or works[j].chunks)
            and works[j].decodes == work.decodes
        ):
            j += 1
        seconds = ends_s[j - 1] - ends_s[start - 1]
        if work.decodes and seconds > 0:
            rows.append((*work, j - start, seconds))
    return Iterations(*np.array(rows, float).reshape(-1, len(Iterations._fields)).T)


def alone(
    streams: Sequence[Stream], found: Timeline, works: Sequence[Work]
) -> tuple[list[Work], Floats]:
    """Prompts that came when nothing ran: what was computed, and the seconds to the first token."""
    kept, seconds = [], []
    for stream, j in zip(streams, found.first, strict=True):
        idle = j == 0 or found.ends_s[j - 1] < stream.sent_s
        if idle and not works[j].decodes and works[j].chunks == 1:
            kept.append(works[j])
            seconds.append(stream.times_s[0] - stream.sent_s)
    return kept, np.array(seconds)
