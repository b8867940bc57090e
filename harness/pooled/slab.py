"""KV blocks of several shapes in one region, by slabs (Aegaeon §5.2, Bonwick's slab allocator).

The region is cut into equal slabs. A slab belongs to one shape while it holds a block of it, and
to nobody otherwise, so memory follows demand from shape to shape. The price is what lies unused
within slabs: fragmentation, kept here as an observable (Aegaeon Fig. 16).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.device.memory import KvShape, OutOfMemory
from harness.errors import UsageError

MAX_SLABS = 1_000_000  # the list of those that are free takes 8 MB


@dataclass(slots=True, eq=False)
class _Slab:
    """The free blocks of a slab: those given back, the latest to be used first, and the rest of
    those never used."""

    fresh: range
    returned: list[int] = field(default_factory=list)

    def take(self, num_blocks: int) -> list[int]:
        """`num_blocks` (≥ 1), or as many as there are."""
        taken = self.returned[: -num_blocks - 1 : -1]
        del self.returned[-num_blocks:]
        more = num_blocks - len(taken)
        if more:
            taken += self.fresh[:more]
            self.fresh = self.fresh[more:]
        return taken


@dataclass(slots=True, eq=False)
class _Pool:
    """The slabs of one shape. `free` has those that are not full, the next to use first."""

    block_bytes: int
    blocks_per_slab: int
    free: dict[int, _Slab] = field(default_factory=dict)
    num_used: int = 0  # blocks
    num_slabs: int = 0
    peak_slabs: int = 0


class SlabAllocator:
    def __init__(self, capacity_bytes: int, slab_bytes: int) -> None:
        if not 1 <= slab_bytes <= capacity_bytes:
            raise UsageError(f"no slab of {slab_bytes} bytes fits in {capacity_bytes} bytes")
        if capacity_bytes // slab_bytes > MAX_SLABS:
            raise UsageError(
                f"slabs of {slab_bytes} bytes divide {capacity_bytes} bytes into more than "
                f"{MAX_SLABS:,}: raise engine.pool.slab_bytes or host_slab_bytes"
            )
        self.slab_bytes = slab_bytes
        self.num_slabs = capacity_bytes // slab_bytes
        self._free_slabs = list(range(self.num_slabs - 1, -1, -1))  # the next to use last
        self._pools: dict[KvShape, _Pool] = {}
        self._used: set[int] = set()  # offsets of the blocks in use
        self._owner: dict[int, _Pool] = {}  # slab -> whose it is
        self._peak_slabs = 0

    def capacity_blocks(self, shape: KvShape) -> int:
        """How many blocks of `shape` there would be if every slab were its own."""
        return self.num_slabs * self._blocks_per_slab(shape)

    def shapes(self) -> list[KvShape]:
        """Every shape that has had a slab."""
        return list(self._pools)

    def room(self, shape: KvShape) -> int:
        """How many more blocks of `shape` can be had now."""
        pool = self._pools.get(shape)
        if pool is None:
            return len(self._free_slabs) * self._blocks_per_slab(shape)
        slabs = pool.num_slabs + len(self._free_slabs)
        return slabs * pool.blocks_per_slab - pool.num_used

    def alloc(self, shape: KvShape, num_blocks: int) -> list[int]:
        """Byte offsets of `num_blocks` blocks; OutOfMemory, and no change, where `room` is less.

        Slabs that `shape` has are filled before it gets another.
        """
        if num_blocks > self.room(shape):
            raise OutOfMemory(
                f"{num_blocks} KV blocks of {shape.block_bytes} bytes are asked for, and "
                f"{self.room(shape)} can be had"
            )
        pool = self._pools.get(shape)
        if pool is None:
            pool = _Pool(shape.block_bytes, self._blocks_per_slab(shape))
            self._pools[shape] = pool
        offsets: list[int] = []
        while (left := num_blocks - len(offsets)) > 0:
            if not pool.free:
                index, blocks = self._add_slab(pool)
                if left >= len(blocks):
                    offsets += blocks
                    continue
                pool.free[index] = _Slab(blocks)
            index, slab = next(iter(pool.free.items()))
            offsets += slab.take(left)
            if not (slab.returned or slab.fresh):
                del pool.free[index]
        pool.num_used += num_blocks
        self._used.update(offsets)
        return offsets

    def free(self, offsets: list[int]) -> None:
        """Gives blocks back, and with the last block of a slab the slab. KeyError: not in use."""
        num_used = len(self._used)
        self._used.difference_update(offsets)
        if num_used - len(self._used) != len(offsets):
            raise KeyError("blocks are given back that nobody uses")
        size, start, end = self.slab_bytes, 0, len(offsets)
        while start < end:  # a run of blocks of one slab
            index = offsets[start] // size
            first, beyond, stop = index * size, (index + 1) * size, start + 1
            while stop < end and first <= offsets[stop] < beyond:
                stop += 1
            self._return(index, offsets[start:stop])
            start = stop

    def _return(self, index: int, freed: list[int]) -> None:
        """Gives back blocks of one slab."""
        pool = self._owner[index]
        slab = pool.free.get(index)
        if slab is None:
            slab = pool.free[index] = _Slab(range(0))
        slab.returned += freed
        pool.num_used -= len(freed)
        if len(slab.returned) + len(slab.fresh) == pool.blocks_per_slab:
            del pool.free[index], self._owner[index]
            pool.num_slabs -= 1
            self._free_slabs.append(index)

    def allocated_bytes(self, shape: KvShape | None = None) -> int:
        """Bytes of the slabs that `shape` has, or all shapes."""
        if shape is None:
            return (self.num_slabs - len(self._free_slabs)) * self.slab_bytes
        return self._pools[shape].num_slabs * self.slab_bytes if shape in self._pools else 0

    def unused_bytes(self, shape: KvShape | None = None) -> int:
        """Bytes within those slabs that hold no block: free slots, and rests too small for one."""
        shapes = self._pools if shape is None else [shape]
        return sum(self.allocated_bytes(each) - self._used_bytes(each) for each in shapes)

    def fragmentation(self, shape: KvShape | None = None) -> float:
        """Unused memory now as a share of the peak of the allocated memory (Aegaeon §7.3)."""
        if shape is None:
            peak = self._peak_slabs
        else:
            peak = self._pools[shape].peak_slabs if shape in self._pools else 0
        return self.unused_bytes(shape) / (peak * self.slab_bytes) if peak else 0.0

    def _add_slab(self, pool: _Pool) -> tuple[int, range]:
        """Gives `pool` a slab; which one, and its blocks."""
        index = self._free_slabs.pop()
        start = index * self.slab_bytes
        self._owner[index] = pool
        pool.num_slabs += 1
        pool.peak_slabs = max(pool.peak_slabs, pool.num_slabs)
        self._peak_slabs = max(self._peak_slabs, self.num_slabs - len(self._free_slabs))
        end = start + pool.blocks_per_slab * pool.block_bytes
        return index, range(start, end, pool.block_bytes)

    def _used_bytes(self, shape: KvShape) -> int:
        pool = self._pools.get(shape)
        return 0 if pool is None else pool.num_used * pool.block_bytes

    def _blocks_per_slab(self, shape: KvShape) -> int:
        blocks = self.slab_bytes // shape.block_bytes
        if blocks < 1:
            raise UsageError(
                f"a KV block of {shape.block_bytes} bytes is larger than a slab of "
                f"{self.slab_bytes}; raise engine.pool.slab_bytes and engine.pool.host_slab_bytes, "
                "or lower engine.block_tokens"
            )
        return blocks
