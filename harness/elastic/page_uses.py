"""Copies that know where blocks lie in a memory, and compactions, which move blocks: never both.

A copy of full blocks runs beside flights and holds no request's gate, so gates do not keep it
apart from a compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Event, Loop


class PageUses:
    """Of one memory."""

    def __init__(self) -> None:
        self.copies = dict[Event, None]()  # those under way: each is set when it is over
        self.compaction: Event | None = None  # one that is under way, or waits for copies


async def begin_copy(loop: Loop, memories: Sequence[PageUses]) -> Event:
    """Returns once none of `memories` is compacted, with what `end_copy` is to be given."""
    while busy := [each.compaction for each in memories if each.compaction is not None]:
        await loop.wait(busy[0])
    over = Event(loop)
    for each in memories:
        each.copies[over] = None
    return over


def end_copy(over: Event, memories: Sequence[PageUses]) -> None:
    for each in memories:
        del each.copies[over]
    over.set()


async def begin_compaction(loop: Loop, memory: PageUses) -> None:
    """Returns once no copy and no other compaction is under way; none begins before
    `end_compaction`."""
    while memory.compaction is not None:
        await loop.wait(memory.compaction)
    memory.compaction = Event(loop)
    while memory.copies:
        await loop.wait(next(iter(memory.copies)))


def end_compaction(memory: PageUses) -> None:
    assert memory.compaction is not None, "it was begun"
    over, memory.compaction = memory.compaction, None
    over.set()
