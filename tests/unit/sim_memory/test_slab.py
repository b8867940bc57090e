"""Slabs: blocks of several shapes in one region, and what of it lies unused."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from harness.device.memory import KvShape, OutOfMemory
from harness.errors import UsageError
from harness.pooled.slab import Run, SlabAllocator, block_offsets
from tests.examples import examples


def shape(block_bytes: int) -> KvShape:
    """A shape whose block has `block_bytes` (even) bytes: one layer, K and V of half as much."""
    return KvShape(
        num_layers=1, num_kv_heads=block_bytes // 2, head_dim=1, dtype_bytes=1, block_tokens=1
    )


SMALL, LARGE = shape(10), shape(32)


def test_a_block_of_llama2_13b_for_16_tokens() -> None:
    """Aegaeon Table 1: (40 layers, 2, 40 heads, 128), 800 KiB a token in fp16."""
    kv = KvShape(num_layers=40, num_kv_heads=40, head_dim=128, dtype_bytes=2, block_tokens=16)
    assert kv.block_bytes == 16 * 800 * 1024
    assert kv.layer_bytes == kv.block_bytes // 40


def test_slabs_go_from_shape_to_shape_with_demand() -> None:
    slabs = SlabAllocator(300, slab_bytes=100)
    assert slabs.room(slabs.pool(SMALL)) == 30
    small = slabs.alloc(slabs.pool(SMALL), 11)
    assert slabs.room(slabs.pool(SMALL)) == 19
    assert slabs.room(slabs.pool(LARGE)) == 3
    slabs.free(small)
    assert slabs.room(slabs.pool(LARGE)) == 9
    slabs.alloc(slabs.pool(LARGE), 9)
    assert slabs.room(slabs.pool(SMALL)) == 0


def test_own_slabs_are_filled_before_another_is_taken() -> None:
    slabs = SlabAllocator(300, slab_bytes=100)
    runs = [run for _ in range(4) for run in slabs.alloc(slabs.pool(SMALL), 5)]
    slabs.free([runs[0], runs[3]])
    assert slabs.alloc(slabs.pool(SMALL), 10) == [runs[0], runs[3]]
    assert slabs.allocated_bytes() == 200


def test_blocks_side_by_side_are_a_run_which_can_be_cut() -> None:
    slabs = SlabAllocator(300, slab_bytes=100)
    runs = slabs.alloc(slabs.pool(SMALL), 25)
    assert block_offsets(runs, 10) == [*range(0, 250, 10)]
    slabs.free_last(runs, 18)
    assert block_offsets(runs, 10) == [*range(0, 70, 10)]
    assert slabs.room(slabs.pool(SMALL)) == 23
    slabs.free(runs)
    assert slabs.allocated_bytes() == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_neighbours_that_come_back_one_after_the_other_are_one_run(order: tuple[int, int]) -> None:
    slabs = SlabAllocator(100, slab_bytes=100)
    held = [slabs.alloc(slabs.pool(SMALL), 3) for _ in range(3)]
    for index in order:
        slabs.free(held[index])
    (run,) = slabs.alloc(slabs.pool(SMALL), 6)
    assert (run.at, run.num_blocks) == (0, 6)


def test_without_room_nothing_changes() -> None:
    slabs = SlabAllocator(200, slab_bytes=100)
    slabs.alloc(slabs.pool(LARGE), 3)
    with pytest.raises(OutOfMemory, match="11 KV blocks of 10 bytes are asked for, and 10 can"):
        slabs.alloc(slabs.pool(SMALL), 11)
    assert len(block_offsets(slabs.alloc(slabs.pool(SMALL), 10), 10)) == 10


def test_fragmentation_is_what_lies_unused_of_the_peak() -> None:
    slabs = SlabAllocator(400, slab_bytes=100)
    small, large = slabs.alloc(slabs.pool(SMALL), 10), slabs.alloc(slabs.pool(LARGE), 4)
    # SMALL fills its slab; LARGE has 3 of 3 blocks and a rest of 4, then 1 of 3 and a rest of 4.
    assert slabs.allocated_bytes(SMALL) == 100
    assert slabs.allocated_bytes(LARGE) == 200
    assert slabs.fragmentation(SMALL) == 0
    assert slabs.unused_bytes(LARGE) == 4 + 68
    assert slabs.fragmentation(LARGE) == 72 / 200
    assert slabs.fragmentation() == 72 / 300
    slabs.free_last(small, 9)
    assert slabs.fragmentation(SMALL) == 90 / 100
    assert slabs.fragmentation() == 162 / 300
    slabs.free(small)
    slabs.free(large)
    assert slabs.allocated_bytes() == 0
    assert slabs.fragmentation() == 0  # of a peak of 300 bytes
    assert slabs.fragmentation(shape(64)) == 0  # never seen


def test_a_block_is_given_back_once() -> None:
    slabs = SlabAllocator(200, slab_bytes=100)
    first, second = [slabs.alloc(slabs.pool(SMALL), 2) for _ in range(2)]
    slabs.free(first)
    for runs in (first, second * 2):
        with pytest.raises(KeyError, match=r"2 blocks at \d+ are given back twice"):
            slabs.free(runs)


def test_a_block_larger_than_a_slab_is_an_error() -> None:
    with pytest.raises(UsageError, match="128 bytes is larger than a slab of 100; raise engine"):
        SlabAllocator(200, slab_bytes=100).pool(shape(128))


def test_a_slab_larger_than_the_region_is_an_error() -> None:
    with pytest.raises(ValueError, match="no slab of 300 bytes fits in 200"):
        SlabAllocator(200, slab_bytes=300)


class SlabStory(RuleBasedStateMachine):
    """Blocks come and go; a plain set of byte ranges says what must be true."""

    SHAPES = (shape(2), shape(10), shape(32), shape(100))

    @initialize(num_slabs=st.integers(1, 6))
    def begin(self, num_slabs: int) -> None:
        self.slabs = SlabAllocator(num_slabs * 100 + 7, slab_bytes=100)
        self.used: dict[int, KvShape] = {}
        self.held: list[tuple[KvShape, list[Run]]] = []

    @rule(kv=st.sampled_from(SHAPES), num_blocks=st.integers(0, 120))
    def take(self, kv: KvShape, num_blocks: int) -> None:
        room = self.slabs.room(self.slabs.pool(kv))
        if num_blocks > room:
            with pytest.raises(OutOfMemory):
                self.slabs.alloc(self.slabs.pool(kv), num_blocks)
            return
        runs = self.slabs.alloc(self.slabs.pool(kv), num_blocks)
        offsets = block_offsets(runs, kv.block_bytes)
        assert len(offsets) == num_blocks
        assert not set(offsets) & set(self.used)
        self.used.update(dict.fromkeys(offsets, kv))
        assert self.slabs.room(self.slabs.pool(kv)) == room - num_blocks
        if runs:
            self.held.append((kv, runs))

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if self.held:
            kv, runs = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            before = block_offsets(runs, kv.block_bytes)
            num_blocks = data.draw(st.integers(0, len(before)))
            self.slabs.free_last(runs, num_blocks)
            kept = block_offsets(runs, kv.block_bytes)
            assert kept == before[: len(before) - num_blocks]
            if kept:
                self.held.append((kv, runs))
            for offset in before[len(kept) :]:
                del self.used[offset]

    @rule(data=st.data())
    def give_all_back(self, data: st.DataObject) -> None:
        if self.held:
            kv, runs = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
            for offset in block_offsets(runs, kv.block_bytes):
                del self.used[offset]
            self.slabs.free(runs)

    @invariant()
    def no_two_blocks_overlap_and_none_crosses_a_slab(self) -> None:
        end = 0
        for offset, kv in sorted(getattr(self, "used", {}).items()):
            assert offset >= end
            end = offset + kv.block_bytes
            assert offset // 100 == (end - 1) // 100 < self.slabs.num_slabs

    @invariant()
    def a_slab_has_one_shape_and_is_counted_while_it_has_a_block(self) -> None:
        if not hasattr(self, "slabs"):
            return
        owner: dict[int, KvShape] = {}
        for offset, kv in self.used.items():
            assert owner.setdefault(offset // 100, kv) == kv
        assert self.slabs.allocated_bytes() == 100 * len(owner)
        used = sum(kv.block_bytes for kv in self.used.values())
        assert self.slabs.unused_bytes() == self.slabs.allocated_bytes() - used
        for kv in self.SHAPES:
            own = [slab for slab, each in owner.items() if each == kv]
            assert self.slabs.allocated_bytes(kv) == 100 * len(own)
            free_slabs = self.slabs.num_slabs - len(owner)
            free = (len(own) + free_slabs) * (100 // kv.block_bytes)
            assert self.slabs.room(self.slabs.pool(kv)) == free - sum(
                each == kv for each in self.used.values()
            )
            assert 0 <= self.slabs.fragmentation(kv) < 1


TestSlabStory = SlabStory.TestCase
TestSlabStory.settings = examples(50)
