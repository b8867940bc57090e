"""Block ids for the counts of a `BlockPool`: which blocks of the KV tensors a request holds.

The pool decides how many blocks each request holds, this decides which ones. Lives beside the
pool in the harness process; the worker is told the ids with every batch and remembers nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from harness.device.block_pool import BlockPool
from harness.request import Request

FIRST_BLOCK = 1  # block 0 belongs to nobody: padding points to it


class BlockTables:
    """Ids run from FIRST_BLOCK to FIRST_BLOCK + num_blocks - 1; no two requests share one.

    The lowest free id goes first, to the request that will write to it first: the blocks in use
    then stay together at the front of the tensors, where attention reads them in place.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._free = list(range(FIRST_BLOCK, FIRST_BLOCK + pool.num_blocks))  # a heap
        self.ids: dict[int, list[int]] = {}  # request_id -> its blocks, in token order

    def reconcile(self, requests: Sequence[Request]) -> None:
        """Takes back what the pool took back and gives `requests` what it gave them.

        Requests outside the batch only ever shrink here: they get their ids once they run.
        """
        for request_id in list(self.ids):
            self._trim(request_id, self._pool.held.get(request_id, 0))
        wanted: list[tuple[int, int]] = []  # (tokens until the block is written to, request_id)
        size = self._pool.block_tokens
        for request in requests:
            request_id = request.request_id
            first = len(self.ids.setdefault(request_id, []))
            wanted += [
                (index * size - request.computed_tokens, request_id)
                for index in range(first, self._pool.held.get(request_id, 0))
            ]
        wanted.sort(key=lambda want: want[0])
        for _, request_id in wanted:
            self.ids[request_id].append(heapq.heappop(self._free))

    def _trim(self, request_id: int, num_blocks: int) -> None:
        ids = self.ids[request_id]
        while len(ids) > num_blocks:
            heapq.heappush(self._free, ids.pop())
        if not ids:
            del self.ids[request_id]

    def check(self) -> None:
        """Raises AssertionError where an id is lost or held twice."""
        used = [block for ids in self.ids.values() for block in ids]
        last = FIRST_BLOCK + self._pool.num_blocks
        assert sorted(used + self._free) == list(range(FIRST_BLOCK, last))
