"""KV blocks of several shapes in one region, by slabs (Aegaeon §5.2, Bonwick's slab allocator).

The region is cut into equal slabs. A slab belongs to one shape while it holds a block of it, and
to nobody otherwise, so memory follows demand from shape to shape. The price is what lies unused
within slabs: fragmentation, kept here as an observable (Aegaeon Fig. 16).
"""

from __future__ import annotations

from harness.memory import KvShape, OutOfMemory


class _Pool:
    """The slabs of one shape. `free_slots` has those that are not full, the next to use first."""

    __slots__ = (
        "block_bytes", "blocks_per_slab", "free_slots", "num_free", "num_slabs", "peak_slabs",
    )  # fmt: skip

    def __init__(self, block_bytes: int, blocks_per_slab: int) -> None:
        self.block_bytes = block_bytes
        self.blocks_per_slab = blocks_per_slab
        self.free_slots: dict[int, list[int]] = {}  # slab -> slots, the next to use last
        self.num_free = 0
        self.num_slabs = 0
        self.peak_slabs = 0


class SlabAllocator:
    def __init__(self, capacity_bytes: int, slab_bytes: int) -> None:
        if not 1 <= slab_bytes <= capacity_bytes:
            raise ValueError(f"no slab of {slab_bytes} bytes fits in {capacity_bytes} bytes")
        self.slab_bytes = slab_bytes
        self.num_slabs = capacity_bytes // slab_bytes
        self._free_slabs = list(range(self.num_slabs - 1, -1, -1))  # the next to use last
        self._pools: dict[KvShape, _Pool] = {}
        self._used: dict[int, _Pool] = {}  # offset of a block in use -> whose it is
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
        return pool.num_free + len(self._free_slabs) * pool.blocks_per_slab

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
        while len(offsets) < num_blocks:
            if not pool.free_slots:
                self._add_slab(pool)
            slab, slots = next(iter(pool.free_slots.items()))
            start, block_bytes = slab * self.slab_bytes, pool.block_bytes
            rest = max(0, len(slots) - (num_blocks - len(offsets)))
            offsets += [start + slot * block_bytes for slot in reversed(slots[rest:])]
            del slots[rest:]
            if not slots:
                del pool.free_slots[slab]
        pool.num_free -= num_blocks
        self._used.update(dict.fromkeys(offsets, pool))
        return offsets

    def free(self, offsets: list[int]) -> None:
        """Gives blocks back, and with the last block of a slab the slab. KeyError: not in use."""
        used, slab_bytes = self._used, self.slab_bytes
        for offset in offsets:
            pool = used.pop(offset)
            slab = offset // slab_bytes
            slots = pool.free_slots.get(slab)
            if slots is None:
                slots = pool.free_slots[slab] = []
            slots.append((offset - slab * slab_bytes) // pool.block_bytes)
            pool.num_free += 1
            if len(slots) == pool.blocks_per_slab:
                del pool.free_slots[slab]
                pool.num_free -= len(slots)
                pool.num_slabs -= 1
                self._free_slabs.append(slab)

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

    def _add_slab(self, pool: _Pool) -> None:
        slots = pool.blocks_per_slab
        pool.free_slots[self._free_slabs.pop()] = list(range(slots - 1, -1, -1))
        pool.num_free += slots
        pool.num_slabs += 1
        pool.peak_slabs = max(pool.peak_slabs, pool.num_slabs)
        self._peak_slabs = max(self._peak_slabs, self.num_slabs - len(self._free_slabs))

    def _used_bytes(self, shape: KvShape) -> int:
        pool = self._pools.get(shape)
        if pool is None:
            return 0
        return (pool.num_slabs * pool.blocks_per_slab - pool.num_free) * pool.block_bytes

    def _blocks_per_slab(self, shape: KvShape) -> int:
        blocks = self.slab_bytes // shape.block_bytes
        if blocks < 1:
            raise ValueError(
                f"a KV block of {shape.block_bytes} bytes is larger than a slab of "
                f"{self.slab_bytes}; choose larger slabs"
            )
        return blocks
