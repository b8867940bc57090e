"""Block ids for a `SlabPool`, whose blocks have places already: an id is a place in the region
that all shapes share, counted in steps on which every block of this shape begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from harness.engine.block_tables import FIRST_BLOCK
from harness.pooled.blocks import SlabPool
from harness.request import Request


def step_bytes(slab_bytes: int, block_bytes: int) -> int:
    """From an id to the next. Blocks begin at s·slab_bytes + k·block_bytes."""
    return gcd(slab_bytes, block_bytes)


class SlabTables:
    """`ids` as in `BlockTables`, of the requests last reconciled."""

    def __init__(self, pool: SlabPool, slab_bytes: int) -> None:
        self._pool = pool
        self._step_bytes = step_bytes(slab_bytes, pool.shape.block_bytes)
        self.ids: dict[int, list[int]] = {}

    def reconcile(self, requests: Sequence[Request]) -> None:
        step, offsets = self._step_bytes, self._pool.offsets
        self.ids = {
            request.request_id: [FIRST_BLOCK + at // step for at in offsets[request.request_id]]
            for request in requests
        }
