"""The KV blocks of one shape in a region that shapes share: a `BlockPool` over slabs.

Its room shrinks and grows with what other shapes hold. Unlike the counts of a `BlockPool`, every
block has a place in the region.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.device.block_pool import BlockPool
from harness.device.memory import KvShape
from harness.model_spec import ModelSpec
from harness.pooled.slab import Run, SlabAllocator
from harness.request import Request


def device_shape(spec: ModelSpec, block_tokens: int) -> KvShape:
    """The shape of a block on each of the `spec.tp` devices that share the heads out."""
    heads = -(-spec.num_kv_heads // spec.tp)
    return KvShape(spec.kv_layers, heads, spec.head_dim, spec.dtype_bytes, block_tokens)


def host_shape(spec: ModelSpec, block_tokens: int) -> KvShape:
    """The shape of the same block in host memory, the devices' parts together."""
    heads = -(-spec.num_kv_heads // spec.tp) * spec.tp
    return KvShape(spec.kv_layers, heads, spec.head_dim, spec.dtype_bytes, block_tokens)


class SlabPool(BlockPool):
    def __init__(self, slabs: SlabAllocator, shape: KvShape) -> None:
        super().__init__(slabs.capacity_blocks(shape), shape.block_tokens)
        self.shape = shape
        self.runs: dict[int, list[Run]] = {}  # request_id -> its blocks, in token order
        self._slabs, self._pool = slabs, slabs.pool(shape)

    @property
    def free_blocks(self) -> int:
        return self._slabs.room(self._pool)

    def detach(self, request: Request) -> list[Run]:
        """The request's blocks, which it no longer holds but which stay taken: a transfer reads
        them. `SlabAllocator.free` gives them back."""
        self.held.pop(request.request_id, 0)
        return self.runs.pop(request.request_id, [])

    def _take(self, request_id: int, num_blocks: int) -> None:
        taken = self._slabs.alloc(self._pool, num_blocks)
        runs = self.runs.get(request_id)
        if runs is None:
            self.runs[request_id] = taken
        else:
            runs += taken

    def _take_grown(self, grown: Sequence[tuple[Request, int]], num_blocks: int) -> bool:
        if num_blocks > self.free_blocks:
            return False
        for request, before in grown:
            self._take(request.request_id, self.held[request.request_id] - before)
        return True

    def _give_back(self, request_id: int, num_blocks: int) -> None:
        if num_blocks:
            runs = self.runs[request_id]
            self._slabs.free_last(runs, num_blocks)
            if not runs:
                del self.runs[request_id]
