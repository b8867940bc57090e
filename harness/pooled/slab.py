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


class Run:
    """`num_blocks` blocks of one shape side by side, from the byte offset `at` on."""

    __slots__ = ("at", "num_blocks", "used")

    def __init__(self, at: int, num_blocks: int, used: bool) -> None:
        self.at, self.num_blocks, self.used = at, num_blocks, used


def block_offsets(runs: Iterable[Run], block_bytes: int) -> list[int]:
    """The byte offset of each block, in order."""
    return [run.at + k * block_bytes for run in runs for k in range(run.num_blocks)]


class Pool:
    """The slabs of one shape. `free` has those that are not full, the next to use first."""

    def __init__(self, shape: KvShape, blocks_per_slab: int) -> None:
        self.shape, self.block_bytes = shape, shape.block_bytes
        self.blocks_per_slab = blocks_per_slab
        self.free: dict[int, _Slab] = {}
        self.num_used = 0  # blocks
        self.num_slabs = 0
        self.peak_slabs = 0
        self._next: _Slab | None = None  # the first of `free`; None: look there

    def first(self) -> _Slab | None:
        if self._next is None:
            for slab in self.free.values():
                self._next = slab
                break
        return self._next

    def leaves(self, slab: _Slab) -> None:
        """`slab` is full, or given back."""
        del self.free[slab.index]
        if slab is self._next:
            self._next = None


class _Slab:
    """A slab that a shape has, with its free blocks, `num_free` in all, the next to use last."""

    def __init__(self, pool: Pool, index: int) -> None:
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
        self._pools: dict[KvShape, Pool] = {}
        # Those that have had a slab, in the order of their first.
        self._shapes: list[KvShape] = []
        self._slabs: list[_Slab | None] = [None] * self.num_slabs  # None: nobody's
        self._peak_slabs = 0

    def capacity_blocks(self, shape: KvShape) -> int:
        """How many blocks of `shape` there would be if every slab were its own."""
        return self.num_slabs * self._blocks_per_slab(shape)

    def shapes(self) -> list[KvShape]:
        """Every shape that has had a slab."""
        return list(self._shapes)

    def pool(self, shape: KvShape) -> Pool:
        pool = self._pools.get(shape)
        if pool is None:
            pool = self._pools[shape] = Pool(shape, self._blocks_per_slab(shape))
        return pool

    def room(self, pool: Pool) -> int:
        """How many more blocks of the pool can be had now."""
        slabs = pool.num_slabs + len(self._free_slabs)
        return slabs * pool.blocks_per_slab - pool.num_used

    def alloc(self, pool: Pool, num_blocks: int) -> list[Run]:
        """`num_blocks` blocks; OutOfMemory, and no change, where `room` is less.

        Slabs that the pool has are filled before it gets another.
        """
        if num_blocks > self.room(pool):
            raise OutOfMemory(
                f"{num_blocks} KV blocks of {pool.block_bytes} bytes are asked for, and "
                f"{self.room(pool)} can be had"
            )
        pool.num_used += num_blocks
        runs = list[Run]()
        while num_blocks > 0:
            slab = pool.first()
            if slab is None:
                slab = self._add_slab(pool)
            run = slab.free.pop()
            length = run.num_blocks
            if length > num_blocks:
                slab.free.append(
                    Run(run.at + num_blocks * pool.block_bytes, length - num_blocks, False)
                )
                run.num_blocks = length = num_blocks
            run.used = True
            slab.num_free -= length
            if not slab.num_free:
                pool.leaves(slab)
            runs.append(run)
            num_blocks -= length
        return runs

    def free(self, runs: list[Run]) -> None:
        """Gives runs back, and with the last block of a slab the slab: they may be another's at
        once, so that the caller is to forget them. KeyError: not in use."""
        for run in runs:
            if not run.used:
                raise KeyError(f"{run.num_blocks} blocks at {run.at} are given back twice")
            run.used = False
            at, length = run.at, run.num_blocks
            slab = self._slab(at)
            pool, was_full = slab.pool, not slab.num_free
            pool.num_used -= length
            slab.num_free += length
            if slab.num_free == pool.blocks_per_slab:
                if not was_full:
                    pool.leaves(slab)
                self._slabs[slab.index] = None
                pool.num_slabs -= 1
                self._free_slabs.append(slab.index)
            elif was_full:
                slab.free.append(run)
                pool.free[slab.index] = slab
            else:
                last, size = slab.free[-1], pool.block_bytes
                if last.at + last.num_blocks * size == at:  # its neighbour
                    last.num_blocks += length
                elif at + length * size == last.at:
                    last.at = at
                    last.num_blocks += length
                else:
                    slab.free.append(run)

    def free_last(self, runs: list[Run], num_blocks: int) -> None:
        """Takes the last `num_blocks` blocks off `runs`, and gives them back."""
        first, stay = len(runs), -num_blocks
        while stay < 0:
            first -= 1
            stay += runs[first].num_blocks
        freed = runs[first:]
        del runs[first:]
        if stay:  # so many blocks of the first of these runs
            run = freed[0]
            cut = run.at + stay * self._slab(run.at).pool.block_bytes
            freed[0] = Run(cut, run.num_blocks - stay, True)
            run.num_blocks = stay
            runs.append(run)
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

    def _slab(self, at: int) -> _Slab:
        """That of a block in use."""
        slab = self._slabs[at // self.slab_bytes]
        assert slab is not None
        return slab

    def _add_slab(self, pool: Pool) -> _Slab:
        """Gives `pool` a slab, all of it free."""
        slab = _Slab(pool, self._free_slabs.pop())
        slab.num_free = pool.blocks_per_slab
        slab.free.append(Run(slab.index * self.slab_bytes, slab.num_free, False))
        self._slabs[slab.index] = pool.free[slab.index] = slab
        if not pool.peak_slabs:
            self._shapes.append(pool.shape)
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
