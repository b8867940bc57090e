"""One buffer for weights: pieces in a row, given back at once (Aegaeon §5.2)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.device.memory import BumpAllocator, OutOfMemory


def test_the_next_model_is_prefetched_behind_the_running_one() -> None:
    buffer = BumpAllocator(1000, align_bytes=16)
    assert buffer.alloc(400) == 0
    assert buffer.alloc(600) == 400
    with pytest.raises(OutOfMemory, match="1000 bytes is taken up to 1000, and 1 more"):
        buffer.alloc(1)
    buffer.reset()
    assert buffer.alloc(600) == 0


@settings(deadline=None)
@given(st.integers(1, 64), st.lists(st.integers(1, 200), max_size=30))
def test_pieces_are_aligned_and_never_overlap(align: int, sizes: list[int]) -> None:
    buffer = BumpAllocator(2000, align)
    end = 0
    for size in sizes:
        try:
            offset = buffer.alloc(size)
        except OutOfMemory:
            assert end + align - 1 + size > 2000
            assert buffer.top_bytes == end
            continue
        assert offset % align == 0
        assert end <= offset < end + align
        end = offset + size
        assert end <= 2000
