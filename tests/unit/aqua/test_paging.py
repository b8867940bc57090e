"""What moves at a slice's start, which blocks of it, and when FCFS takes over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.aqua.config import SchedulerVariant
from systems.aqua.paging import blocks_out, falls_back, paging
from systems.aqua.prompt import Slice
from tests.unit.aqua.test_fair_scheduler import decode, prefill
from tests.unit.aqua.turns import changed


def test_partial_prefills_are_paged_too_and_empty_ones_are_not() -> None:
    partial, empty = changed(prefill(0, 9, 4), resident=True), changed(prefill(1, 9), resident=True)
    away, stays = decode(2, 9, 1), changed(decode(3, 9, 1), resident=True)
    moves = paging([partial, empty, away, stays], Slice((4,), (2, 3), fair=True))
    assert (moves.out, moves.into) == ((0,), (2,))


def test_blocks_written_since_the_last_copy() -> None:
    assert blocks_out(9, 0, 4) == range(3)
    assert blocks_out(9, 6, 4) == range(1, 3)
    assert blocks_out(9, 8, 4) == range(2, 3)
    assert not blocks_out(9, 9, 4)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 7))
def test_what_was_kept_and_what_is_copied_are_every_token(
    computed: int, saved: int, block_tokens: int
) -> None:
    saved = min(saved, computed)
    copied = blocks_out(computed, saved, block_tokens)
    fresh = {t // block_tokens for t in range(saved, computed)}
    assert set(copied) == fresh  # each block that holds a new token, and no other


def test_fcfs_where_tensors_lie_in_dram() -> None:
    assert falls_back([True, False], "any")
    assert not falls_back([True, False], "all")
    assert falls_back([True, True], "all")
    assert not falls_back([True, True], "never")
    assert not falls_back([], "any")
    assert not falls_back([], "all")
    with pytest.raises(ValueError, match="fcfs_when_in_dram=some is unknown; valid: never, any"):
        SchedulerVariant(slice_iterations=1, dirty_only=False, fcfs_when_in_dram="some")
