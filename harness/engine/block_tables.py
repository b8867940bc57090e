"""Block ids for the counts of a `BlockPool`: which blocks of the KV tensors a request holds.

The pool decides how many blocks each request holds, this decides which ones. Lives beside the
pool in the harness process; the worker is told the ids with every batch and remembers nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import gcd

from harness.device.block_pool import BlockPool
from harness.device.caching_pool import Cached, CachedPrefix, CachingPool
from harness.pooled.blocks import SlabPool
from harness.pooled.slab import block_offsets
from harness.request import Request

FIRST_BLOCK = 1  # block 0 belongs to nobody: padding points to it


class BlockTables:
    """Ids run from FIRST_BLOCK to FIRST_BLOCK + num_blocks - 1; requests share those of blocks that
    the pool says they share, and no others.

    The lowest free id goes first, to the request that will write to it first: the blocks in use
    then stay together at the front of the tensors, where attention reads them in place.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._free = list(range(FIRST_BLOCK, FIRST_BLOCK + pool.num_blocks))  # a heap
        self.ids: dict[int, list[int]] = {}  # request_id -> its blocks, in token order
        self._shared: dict[int, list[Cached]] = {}
        if isinstance(pool, CachingPool):
            pool.places, self._shared = self, pool.shared

    def reconcile(self, requests: Sequence[Request]) -> None:
        """Has `ids` agree with the pool: takes back what it took back, gives `requests` what it
        gave them.

        Requests outside the batch only ever shrink here: they get their ids once they run. What a
        decode reserves ahead is taken for good: cached blocks are evicted for it, unlike in
        simulation.
        """
        if isinstance(self._pool, CachingPool):
            self._pool.settle()
        for request_id in list(self.ids):
            self._trim(request_id, self._pool.held.get(request_id, 0))
        wanted: list[tuple[int, int]] = []  # (tokens until the block is written to, request_id)
        size = self._pool.block_tokens
        for request in requests:
            request_id = request.request_id
            self._place_shared(request_id)
            first = len(self.ids.setdefault(request_id, []))
            wanted += [
                (index * size - request.computed_tokens, request_id)
                for index in range(first, self._pool.held.get(request_id, 0))
            ]
        wanted.sort(key=lambda want: want[0])
        for _, request_id in wanted:
            self.ids[request_id].append(heapq.heappop(self._free))

    def _place_shared(self, request_id: int) -> None:
        """A block that others may use keeps the id that its first request has for it."""
        shared = self._shared.get(request_id)
        if not shared:
            return
        ids = self.ids.setdefault(request_id, [])
        for index, block in enumerate(shared):
            if index == len(ids):
                ids.append(block.places[0] if block.places else heapq.heappop(self._free))
            if not block.places:
                block.places.append(ids[index])

    def adopted(self, request: Request, prefix: CachedPrefix) -> None:
        """Answers `harness.device.caching_pool.Places`. A block that is computed in the same
        iteration has no id yet: `reconcile` gives it one."""
        assert request.request_id not in self.ids, request.request_id
        own = prefix.own.places if prefix.own is not None else []
        if own:
            self.ids[request.request_id] = [b.places[0] for b in prefix.shared] + own

    def released(self, request: Request, shared: Sequence[Cached], own: Cached | None) -> None:
        ids = self.ids.pop(request.request_id, [])
        for block, place in zip(shared, ids, strict=False):
            if not block.places:  # named only now: of an answer
                block.places.append(place)
        kept = len(shared) + (own.num_blocks if own is not None else 0)
        if own is not None:
            own.places = ids[len(shared) : kept]
        for place in ids[kept:]:
            heapq.heappush(self._free, place)

    def evicted(self, block: Cached, num_blocks: int) -> None:
        for _ in range(num_blocks if block.places else 0):
            heapq.heappush(self._free, block.places.pop())

    def _trim(self, request_id: int, num_blocks: int) -> None:
        ids = self.ids[request_id]
        while len(ids) > num_blocks:
            heapq.heappush(self._free, ids.pop())
        if not ids:
            del self.ids[request_id]


def step_bytes(slab_bytes: int, block_bytes: int) -> int:
    """The bytes from an id to the next. Blocks begin at s·slab_bytes + k·block_bytes."""
    return gcd(slab_bytes, block_bytes)


class SlabTables:
    """The block tables of slabs: `ids` as in `BlockTables`, of the requests last reconciled."""

    def __init__(self, pool: SlabPool, slab_bytes: int) -> None:
        self._pool = pool
        self._step_bytes = step_bytes(slab_bytes, pool.shape.block_bytes)
        self.ids: dict[int, list[int]] = {}

    def reconcile(self, requests: Sequence[Request]) -> None:
        step, runs, size = self._step_bytes, self._pool.runs, self._pool.shape.block_bytes
        self.ids = {
            request.request_id: [
                FIRST_BLOCK + at // step for at in block_offsets(runs[request.request_id], size)
            ]
            for request in requests
        }
