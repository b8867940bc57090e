"""KV blocks of several shapes in one region, by slabs (Aegaeon §5.2, Bonwick's slab allocator).

The region is cut into equal slabs. A slab belongs to one shape while it holds a block of it, and
to nobody otherwise, so memory follows demand from shape to shape. The price is what lies unused
within slabs: fragmentation, kept here as an observable (Aegaeon Fig. 16).
"""

from __future__ import annotations

from harness.memory import KvShape, OutOfMemory


class _Pool:
    """The slabs of one shape. `free_slots` has those that are not full, the next to use first."""

    def __init__(self) -> None:
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
        self._used: dict[int, KvShape] = {}  # offset of a block in use -> its shape
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
        in_slabs = pool.num_free if pool else 0
        return in_slabs + len(self._free_slabs) * self._blocks_per_slab(shape)

    def alloc(self, shape: KvShape, num_blocks: int) -> list[int]:
        """Byte offsets of `num_blocks` blocks; OutOfMemory, and no change, where `room` is less.

        Slabs that `shape` has are filled before it gets another.
        """
        if num_blocks > self.room(shape):
            raise OutOfMemory(
                f"{num_blocks} KV blocks of {shape.block_bytes} bytes are asked for, and "
                f"{self.room(shape)} can be had"
            )
        pool = self._pools.setdefault(shape, _Pool())
        offsets = []
        for _ in range(num_blocks):
            if not pool.free_slots:
                self._add_slab(shape, pool)
            slab, slots = next(iter(pool.free_slots.items()))
            offsets.append(slab * self.slab_bytes + slots.pop() * shape.block_bytes)
            if not slots:
                del pool.free_slots[slab]
        pool.num_free -= num_blocks
        self._used.update(dict.fromkeys(offsets, shape))
        return offsets

    def free(self, offsets: list[int]) -> None:
        """Gives blocks back, and with the last block of a slab the slab. KeyError: not in use."""
        for offset in offsets:
            shape = self._used.pop(offset)
            pool = self._pools[shape]
            slab, within = divmod(offset, self.slab_bytes)
            slots = pool.free_slots.setdefault(slab, [])
            slots.append(within // shape.block_bytes)
            pool.num_free += 1
            if len(slots) == self._blocks_per_slab(shape):
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

    def _add_slab(self, shape: KvShape, pool: _Pool) -> None:
        slots = self._blocks_per_slab(shape)
        pool.free_slots[self._free_slabs.pop()] = list(range(slots - 1, -1, -1))
        pool.num_free += slots
        pool.num_slabs += 1
        pool.peak_slabs = max(pool.peak_slabs, pool.num_slabs)
        self._peak_slabs = max(self._peak_slabs, self.num_slabs - len(self._free_slabs))

    def _used_bytes(self, shape: KvShape) -> int:
        pool = self._pools.get(shape)
        if pool is None:
            return 0
        slots = pool.num_slabs * self._blocks_per_slab(shape)
        return (slots - pool.num_free) * shape.block_bytes

    def _blocks_per_slab(self, shape: KvShape) -> int:
        blocks = self.slab_bytes // shape.block_bytes
        if blocks < 1:
            raise ValueError(
                f"a KV block of {shape.block_bytes} bytes is larger than a slab of "
                f"{self.slab_bytes}; choose larger slabs"
            )
        return blocks
