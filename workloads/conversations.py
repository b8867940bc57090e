"""Which requests of a trace are turns of one conversation: as the trace says, or as its prompts do.

A turn continues another where its prompt is longer than prompt and answer of that one together:
what is new are the user's words. Traces whose applications drop a part of the answer (thoughts)
break a conversation there: that turn begins a session of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from harness.errors import UsageError
from harness.sessions import Sessions, previous_rows
from workloads.json_traces import full_blocks
from workloads.trace import Place, Trace

LENGTHS_TELL = "a row whose prompt is longer than all of the row before is its next turn"
BLOCKS_TELL = (
    "a prompt that begins with all full blocks of another, the last of which no earlier one had, "
    "is its next turn"
)


def sessions(trace: Trace) -> tuple[Trace, Sessions]:
    """`trace`, labelled and with every row behind those that it waits for; its rows' sessions, each
    named by its first row, without think times. UsageError where nothing in the trace tells."""
    branched = trace.place is not None and any(len(place) > 1 for place in trace.place)
    if branched:
        assert trace.place is not None
        trace = trace.take(np.array(sorted(range(len(trace)), key=trace.place.__getitem__)))
    if trace.parent is not None:
        ways, step = _by_parent, "turns by their parents' ids"
    elif trace.shared is not None:
        ways, step = _by_blocks, f"turns INFERRED: {BLOCKS_TELL}"
    elif trace.arrival_s is None:
        ways, step = _by_rows, f"turns INFERRED: {LENGTHS_TELL}"
    else:
        raise UsageError(
            f"{trace.provenance.source} tells of no sessions; valid: Bailian's, Mooncake's and "
            "WEKA's JSON lines, ServeGen's conversations, lengths of prompts with their history "
            "(num_prefill_tokens,num_decode_tokens), and a run's schedule.parquet"
        )
    found, broken = _linked(trace, ways(trace))
    if broken:
        step += f"; {broken} turns whose prompt lacks what was said before begin sessions"
    if branched:
        assert trace.place is not None
        found.waits_for = _waits(trace.place.tolist(), previous_rows(found.session).tolist())
        step += "; branches begin after the turn before them, and the next one waits for them"
    return trace.labelled(step), found


def _linked(trace: Trace, candidates: Iterator[int | None]) -> tuple[Sessions, int]:
    """The sessions, and how many candidates were no continuation (-1: one that the trace lacks). A
    row is continued once: further branches begin sessions."""
    totals = trace.prompt_tokens + trace.output_tokens
    session, broken, continued = np.arange(len(trace)), 0, set[int]()
    for row, found in enumerate(candidates):
        if found is None or found in continued:
            continue
        if found >= 0 and trace.prompt_tokens[row] > totals[found]:
            session[row] = session[found]
            continued.add(found)
        else:
            broken += 1
    return Sessions(session, np.zeros(len(trace))), broken


def _waits(places: list[Place], before: list[int]) -> list[tuple[int, ...]]:
    """For each row, in the order of `places`, what it waits for besides the row `before`: of one
    list the request before, and what ended last of each branch between; of a branch's first
    request, its parent's latest."""
    latest: dict[Place, int] = {}  # of each list
    ends = defaultdict[Place, dict[int, None]](dict)  # of each list: the ends of branches since
    waits = list[tuple[int, ...]]()
    for row, place in enumerate(places):
        around = [place[:length] for length in range(len(place) - 1, 0, -1)]  # the innermost first
        begins = [latest[each] for each in around if each in latest][:1]
        rows = [*begins, *ends.pop(place[:-1], ())]
        for each in around[1:]:
            for end in rows:
                ends[each].pop(end, None)
            ends[each][row] = None
        latest[place[:-1]] = row
        waits.append(tuple(each for each in rows if each != before[row]))
    return waits


def _by_parent(trace: Trace) -> Iterator[int | None]:
    assert trace.chat is not None
    assert trace.parent is not None
    rows: dict[int, int] = {}
    chats = zip(trace.chat.tolist(), trace.parent.tolist(), strict=True)
    for row, (chat, parent) in enumerate(chats):
        yield rows.get(parent, None if parent == -1 else -1)
        rows[chat] = row


def _by_rows(trace: Trace) -> Iterator[int | None]:
    longer = trace.prompt_tokens[1:] > (trace.prompt_tokens + trace.output_tokens)[:-1]
    yield None
    yield from (row if each else None for row, each in enumerate(longer))


def _by_blocks(trace: Trace) -> Iterator[int | None]:
    assert trace.shared is not None
    places: list[Place] = [()] * len(trace) if trace.place is None else trace.place.tolist()
    # Of each list of requests, or line of them: a request's last full block, which it was the first
    # to have, and its row; None in place of a row: another one had the block before
    had = defaultdict[Place, dict[int, int | None]](dict)
    for row, segments in enumerate(trace.shared):
        blocks = [stream for stream, _ in full_blocks(segments, trace.prompt_tokens[row])]
        rows = had[places[row][:-1] or places[row]]
        ends = [end for block in blocks if (end := rows.get(block)) is not None]
        if blocks:
            rows.setdefault(blocks[-1], row)
        rows |= {block: None for block in blocks if block not in rows}
        yield ends[-1] if ends else None
