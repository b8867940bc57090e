"""Which pages of a memory each request's blocks are, behind the counts of a `PagePool`.

Live engines alone need places. Counts decide, tables follow: `reconcile` has them agree for the
requests of a batch before it runs. The lowest free page is used first, so that the tail empties
by itself.

Copies that know where blocks lie in a memory, and compactions, which move blocks, are never under
way both. A copy of full blocks runs beside batches and holds no request's gate, so gates do not
keep it apart from a compaction.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from harness.clock import Event, Loop
from harness.elastic.fabric import Span
from harness.elastic.page_pool import Groups, PagePool
from harness.request import Request


class KvCopy(NamedTuple):
    """`blocks` of the request's KV; at the target they are those of `to`."""

    request: Request
    to: Request
    blocks: range


class PageTables:
    """`pages`: ids that may be used. `base_bytes`: where page 0 begins in the memory."""

    def __init__(self, pool: PagePool, pages: Sequence[range], base_bytes: int) -> None:
        self._pool = pool
        self.base_bytes = base_bytes
        self._pages = {page for ids in pages for page in ids}
        self._free = sorted(self._pages)
        self.ids: dict[int, dict[int, list[int]]] = {}  # request_id -> group -> pages, in order
        self._copies = dict[Event, None]()  # those under way: each is set when it is over
        self._compaction: Event | None = None  # one that is under way, or waits for copies

    def reconcile(self, requests: Iterable[Request]) -> None:
        """Has `ids` agree with the pool for `requests`, and takes back what is released. Of
        blocks that are reserved for steps to come, the one that is written to first gets the lowest
        page: those in use stay together. Blocks of a group that are full, or are to be filled by a
        copy or a prompt, stay together for copies."""
        for request_id in [r for r in self.ids if r not in self._pool.held]:
            self._trim(request_id)
        wanted: list[tuple[int, list[int]]] = []  # (tokens until a block is written to, its pages)
        size = self._pool.block_tokens
        for request in requests:
            request_id = request.request_id
            self._trim(request_id)
            mine, held = self.ids.setdefault(request_id, {}), self._pool.held.get(request_id, 0)
            for group in self._pool.groups.get(request_id, ()):
                pages = mine.setdefault(group, [])
                for index in range(len(pages), held):
                    ahead = index * size - request.computed_tokens if request.decoding else 0
                    wanted.append((max(ahead, 0), pages))
        if len(wanted) > len(self._free):
            self._take_back()
        wanted.sort(key=lambda want: want[0])
        for _, pages in wanted:
            pages.append(heapq.heappop(self._free))

    def _take_back(self) -> None:
        """What any request holds no longer by the counts. No batch uses it, or it would be
        counted."""
        for request_id in list(self.ids):
            self._trim(request_id)

    def _trim(self, request_id: int) -> None:
        """Takes back groups of the request that have moved away, and blocks of steps that were not
        taken."""
        mine, held = self.ids.get(request_id, {}), self._pool.held.get(request_id, 0)
        groups = self._pool.groups.get(request_id, ())
        for group, pages in list(mine.items()):
            while len(pages) > (held if group in groups else 0):
                self._give_back(pages.pop())
            if group not in groups:
                del mine[group]
        if not mine:
            self.ids.pop(request_id, None)

    def spans(
        self, copies: Sequence[KvCopy], groups: Groups, target: PageTables, page_bytes: int
    ) -> list[Span]:
        """Blocks from here to `target`, whose counts are reconciled here; neighbours as one."""
        self.reconcile([each.request for each in copies])
        target.reconcile([each.to for each in copies])
        found: list[Span] = []
        for request, to, blocks in copies:
            for group in groups:
                here = self.ids[request.request_id][group]
                there = target.ids[to.request_id][group]
                for block in blocks:
                    source_at = self.base_bytes + here[block] * page_bytes
                    target_at = target.base_bytes + there[block] * page_bytes
                    found.append(Span(source_at, target_at, page_bytes))
        return merged(found)

    def extend(self, pages: Sequence[range]) -> None:
        """Takes further ids."""
        more = {page for ids in pages for page in ids} - self._pages
        self._pages |= more
        used = {page for mine in self.ids.values() for ids in mine.values() for page in ids}
        for page in sorted(more - used):
            heapq.heappush(self._free, page)

    def restrict(self, pages: Sequence[range]) -> None:
        """Only ids of `pages` are given out from now on. Blocks elsewhere stay until `compact`."""
        self._pages = {page for ids in pages for page in ids}
        self._free = [page for page in self._free if page in self._pages]
        heapq.heapify(self._free)

    def outside(self) -> list[int]:
        """request_ids with blocks in ids that may not be used any more."""
        return [
            request_id
            for request_id, mine in self.ids.items()
            if request_id in self._pool.held
            and any(page not in self._pages for ids in mine.values() for page in ids)
        ]

    def compact(self, request_ids: Collection[int], page_bytes: int) -> list[Span]:
        """The copies that get the requests' blocks to ids that may be used."""
        self._take_back()
        spans = []
        for request_id in self.ids.keys() & request_ids:
            for ids in self.ids[request_id].values():
                for i, page in enumerate(ids):
                    if page not in self._pages:
                        ids[i] = heapq.heappop(self._free)
                        at = self.base_bytes + page * page_bytes
                        spans.append(Span(at, self.base_bytes + ids[i] * page_bytes, page_bytes))
        return spans

    @asynccontextmanager
    async def compacting(self, loop: Loop) -> AsyncIterator[None]:
        """Begins once no copy and no other compaction is under way; no copy begins before it is
        over."""
        while self._compaction is not None:
            await loop.wait(self._compaction)
        self._compaction = over = Event(loop)
        try:
            while self._copies:
                await loop.wait(next(iter(self._copies)))
            yield
        finally:
            self._compaction = None
            over.set()

    def _give_back(self, page: int) -> None:
        if page in self._pages:
            heapq.heappush(self._free, page)


@asynccontextmanager
async def copying(loop: Loop, tables: Sequence[PageTables]) -> AsyncIterator[None]:
    """A copy between memories with these `tables`: begins once none of them is compacted."""
    while busy := [each._compaction for each in tables if each._compaction is not None]:
        await loop.wait(busy[0])
    over = Event(loop)
    for each in tables:
        each._copies[over] = None
    try:
        yield
    finally:
        for each in tables:
            del each._copies[over]
        over.set()


def merged(spans: Sequence[Span]) -> list[Span]:
    """Spans that go on in one piece on both sides, as one."""
    found: list[Span] = []
    for span in spans:
        last = found[-1] if found else None
        if (
            last is not None
            and last.source_at + last.num_bytes == span.source_at
            and last.target_at + last.num_bytes == span.target_at
        ):
            found[-1] = Span(last.source_at, last.target_at, last.num_bytes + span.num_bytes)
        else:
            found.append(span)
    return found
