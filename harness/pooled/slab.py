"""KV blocks of several shapes in one region, by slabs (Aegaeon §5.2, Bonwick's slab allocator).

The region is cut into equal slabs. A slab belongs to one shape while it holds a block of it, and
to nobody otherwise, so memory follows demand from shape to shape. The price is what lies unused
within slabs: fragmentation, kept here as an observable (Aegaeon Fig. 16).
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.device.memory import KvShape, OutOfMemory
from harness.errors import UsageError

MAX_SLABS = 1_000_000  # the lists of all and of those that are free take 16 MB


# Blocks of one shape side by side: the byte offset of the first, and how many.
Run = tuple[int, int]


def block_offsets(runs: Iterable[Run], block_bytes: int) -> list[int]:
    """The byte offset of each block, in order."""
    return [at + k * block_bytes for at, num_blocks in runs for k in range(num_blocks)]


class _Pool:
    """The slabs of one shape. `free` has those that are not full, the next to use first."""

    def __init__(self, block_bytes: int, blocks_per_slab: int) -> None:
        self.block_bytes, self.blocks_per_slab = block_bytes, blocks_per_slab
        self.free: dict[int, _Slab] = {}
        self.num_used = 0  # blocks
        self.num_slabs = 0
        self.peak_slabs = 0

    def first(self) -> _Slab | None:
        for slab in self.free.values():
            return slab
        return None


class _Slab:
    """A slab that a shape has, with its free blocks, `num_free` in all, the next to use last."""

    def __init__(self, pool: _Pool, index: int) -> None:
        self.pool, self.index = pool, index
        self.num_free = 0
        self.free: list[Run] = []


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
        self._used: dict[int, int] = {}  # the runs in use
        self._slabs: list[_Slab | None] = [None] * self.num_slabs  # None: nobody's
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
        return self._left(pool)

    def alloc(self, shape: KvShape, num_blocks: int) -> list[Run]:
        """`num_blocks` blocks; OutOfMemory, and no change, where `room` is less.

        Slabs that `shape` has are filled before it gets another.
        """
        pool = self._pools.get(shape)
        new = pool is None
        if pool is None:
            pool = _Pool(shape.block_bytes, self._blocks_per_slab(shape))
        if num_blocks > self._left(pool):
            raise OutOfMemory(
                f"{num_blocks} KV blocks of {shape.block_bytes} bytes are asked for, and "
                f"{self._left(pool)} can be had"
            )
        if new:
            self._pools[shape] = pool
        pool.num_used += num_blocks
        runs = list[Run]()
        while num_blocks > 0:
            slab = pool.first()
            if slab is None:
                slab, length = self._add_slab(pool), pool.blocks_per_slab
                at = slab.index * self.slab_bytes
                if length > num_blocks:
                    pool.free[slab.index] = slab
            else:
                at, length = slab.free.pop()
                slab.num_free -= length
                if not slab.num_free and length <= num_blocks:
                    del pool.free[slab.index]
            if length > num_blocks:
                rest = length - num_blocks
                slab.free.append((at + num_blocks * pool.block_bytes, rest))
                slab.num_free += rest
                length = num_blocks
            self._used[at] = length
            runs.append((at, length))
            num_blocks -= length
        return runs

    def free(self, runs: list[Run]) -> None:
        """Gives runs back, and with the last block of a slab the slab. KeyError: not in use."""
        for run in runs:
            at, length = run
            if self._used.pop(at) != length:
                raise KeyError(f"{length} blocks at {at} are given back, which nobody has")
            slab = self._slab(at)
            pool, was_full = slab.pool, not slab.num_free
            pool.num_used -= length
            slab.num_free += length
            if slab.num_free == pool.blocks_per_slab:
                if not was_full:
                    del pool.free[slab.index]
                self._slabs[slab.index] = None
                pool.num_slabs -= 1
                self._free_slabs.append(slab.index)
            elif was_full:
                slab.free.append(run)
                pool.free[slab.index] = slab
            else:
                last, size = slab.free[-1], pool.block_bytes
                if last[0] + last[1] * size == at or at + length * size == last[0]:  # its neighbour
                    slab.free[-1] = (min(last[0], at), last[1] + length)
                else:
                    slab.free.append(run)

    def free_last(self, runs: list[Run], num_blocks: int) -> None:
        """Takes the last `num_blocks` blocks off `runs`, and gives them back."""
        first, stay = len(runs), -num_blocks
        while stay < 0:
            first -= 1
            stay += runs[first][1]
        freed = runs[first:]
        del runs[first:]
        if stay:  # so many blocks of the first of these runs
            at, length = freed[0]
            cut = at + stay * self._slab(at).pool.block_bytes
            runs.append((at, stay))
            freed[0] = (cut, length - stay)
            self._used[at], self._used[cut] = stay, length - stay
        self.free(freed)

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

    def _left(self, pool: _Pool) -> int:
        slabs = pool.num_slabs + len(self._free_slabs)
        return slabs * pool.blocks_per_slab - pool.num_used

    def _slab(self, at: int) -> _Slab:
        """That of a block in use."""
        slab = self._slabs[at // self.slab_bytes]
        assert slab is not None
        return slab

    def _add_slab(self, pool: _Pool) -> _Slab:
        """Gives `pool` a slab, whose blocks the caller has."""
        slab = _Slab(pool, self._free_slabs.pop())
        self._slabs[slab.index] = slab
        pool.num_slabs += 1
        pool.peak_slabs = max(pool.peak_slabs, pool.num_slabs)
        self._peak_slabs = max(self._peak_slabs, self.num_slabs - len(self._free_slabs))
        return slab

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
