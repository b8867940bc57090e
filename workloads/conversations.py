"""Which requests of a trace are turns of one conversation: as the trace says, or as its prompts do.

A turn continues another where its prompt is longer than prompt and answer of that one together:
what is new are the user's words. Traces whose applications drop a part of the answer (thoughts)
break a conversation there: that turn begins a session of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.errors import UsageError
from workloads.formats import full_blocks
from workloads.trace import Ints, Trace

LENGTHS_TELL = "a row whose prompt is longer than all of the row before is its next turn"
BLOCKS_TELL = (
    "a prompt that begins with all full blocks of another, the last of which no earlier one had, "
    "is its next turn"
)


def previous_turns(trace: Trace) -> tuple[Trace, Ints]:
    """Labels `trace`, and tells for each row the row of the turn before; -1: it begins a session.
    UsageError where nothing in the trace tells."""
    if trace.chat is not None:
        ways, step = _by_parent, "turns by their parents' ids"
    elif trace.shared is not None:
        ways, step = _by_blocks, f"turns INFERRED: {BLOCKS_TELL}"
    elif trace.arrival_s is None:
        ways, step = _by_rows, f"turns INFERRED: {LENGTHS_TELL}"
    else:
        raise UsageError(
            f"{trace.provenance.source} tells of no sessions; valid: Bailian's, Mooncake's and "
            "WEKA's JSON lines, lengths of prompts with their history "
            "(num_prefill_tokens,num_decode_tokens), and a run's schedule.parquet"
        )
    before, broken = _linked(trace, ways(trace))
    if broken:
        step += f"; {broken} turns whose prompt lacks what was said before begin sessions"
    return trace.labelled(step), before


def _linked(trace: Trace, candidates: Callable[[int], int | None]) -> tuple[Ints, int]:
    """The previous rows, and how many candidates were no continuation. A row is continued once:
    further branches begin sessions."""
    totals = trace.prompt_tokens + trace.output_tokens
    before, broken, continued = np.full(len(trace), -1, np.int64), 0, set[int]()
    for row in range(len(trace)):
        found = candidates(row)
        if found is None or found in continued:
            continue
        if trace.prompt_tokens[row] > totals[found]:
            before[row] = found
            continued.add(found)
        else:
            broken += 1
    return before, broken


def _by_parent(trace: Trace) -> Callable[[int], int | None]:
    assert trace.chat is not None
    assert trace.parent is not None
    rows: dict[int, int] = {}
    chats, parents = trace.chat.tolist(), trace.parent.tolist()

    def candidate(row: int) -> int | None:
        found = rows.get(parents[row])
        rows[chats[row]] = row
        return found

    return candidate


def _by_rows(trace: Trace) -> Callable[[int], int | None]:
    totals = trace.prompt_tokens + trace.output_tokens

    def candidate(row: int) -> int | None:
        longer = row > 0 and trace.prompt_tokens[row] > totals[row - 1]
        return row - 1 if longer else None

    return candidate


def _by_blocks(trace: Trace) -> Callable[[int], int | None]:
    assert trace.shared is not None
    shared, seen = trace.shared, set[int]()
    last: dict[int, int] = {}  # a request's last full block, which it was the first to have -> row

    def candidate(row: int) -> int | None:
        blocks = [stream for stream, _ in full_blocks(shared[row], trace, row)]
        found = next((last[block] for block in reversed(blocks) if block in last), None)
        if blocks and blocks[-1] not in seen:
            last[blocks[-1]] = row
        seen.update(blocks)
        return found

    return candidate
