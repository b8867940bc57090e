"""A group holds one full copy, embedding and head included; how layers are split."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.elastic.device_layout import weight_bytes
from systems.kunserve.group import alone, dropped_bytes, shard_bytes
from systems.kunserve.merge import merge
from tests.examples import examples
from tests.unit.kunserve.strategies import QWEN_14B, check, grouped, model_of, singles

GIB = 2**30


def test_two_halves_are_one_replica_with_both_ends() -> None:
    first, second = shard_bytes(QWEN_14B, range(24)), shard_bytes(QWEN_14B, range(24, 48))
    assert first + second == QWEN_14B.weight_bytes
    matrix = QWEN_14B.vocab_size * QWEN_14B.hidden_size * 2
    assert first == 24 * QWEN_14B.layer_bytes + matrix
    assert second == first + QWEN_14B.hidden_size * 2  # the final norm
    assert shard_bytes(QWEN_14B, range(12, 24)) == 12 * QWEN_14B.layer_bytes
    assert shard_bytes(QWEN_14B, range(0)) == 0


def test_a_tied_embedding_lies_at_both_ends_as_on_the_devices() -> None:
    tied = model_of(8, tied=True)
    assert shard_bytes(tied, range(8)) == weight_bytes(tied)
    matrix = tied.vocab_size * tied.hidden_size * 2
    halves = shard_bytes(tied, range(4)) + shard_bytes(tied, range(4, 8))
    assert halves == weight_bytes(tied) == tied.weight_bytes + matrix


def test_the_preprints_figure_for_eight_instances() -> None:
    """§4.1: four groups free 4 P; one group of eight frees 7 P, 1.75 times as much."""
    replica = QWEN_14B.weight_bytes
    assert dropped_bytes(QWEN_14B, grouped([2, 2, 2, 2], 48)) == 4 * replica
    assert dropped_bytes(QWEN_14B, grouped([8], 48)) == 7 * replica
    assert round(7 * replica / GIB) == 193


def test_uneven_layers_differ_by_one() -> None:
    (group,) = grouped([5], 48)
    assert [len(stage.layers) for stage in group] == [9, 10, 9, 10, 10]
    check([group], 48)


def test_two_pairs_merge_into_quarters_of_what_they_hold() -> None:
    pairs = grouped([2, 2], 48)
    merged = merge(pairs)
    assert merged is not None
    assert [stage.layers for stage in merged] == [range(k, k + 12) for k in (0, 12, 24, 36)]
    assert {stage.member for stage in merged[:2]} == {"i0", "i2"}  # who hold the first half


def test_a_merge_that_would_need_a_load_is_none() -> None:
    assert merge(singles(3, 2)) is None
    assert merge(grouped([2, 1], 2)) is None


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    num_layers=st.integers(4, 50),
)
def test_a_merged_group_is_one_copy_of_what_its_members_hold(
    sizes: list[int], num_layers: int
) -> None:
    groups = grouped(sizes, num_layers)
    merged = merge(groups)
    if merged is None:
        return
    check([merged], num_layers)
    held = {stage.member: stage.layers for group in groups for stage in group}
    assert {stage.member for stage in merged} == set(held)
    for stage in merged:
        assert set(stage.layers) <= set(held[stage.member])


@examples(60)
@given(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=3), num_layers=st.integers(3, 7))
def test_no_other_split_has_a_smaller_largest_stage(sizes: list[int], num_layers: int) -> None:
    """By brute force over every order of the members and every place to cut."""
    groups = grouped(sizes, num_layers)
    held = [stage.layers for group in groups for stage in group]
    if len(held) > 5:
        return

    def least(order: tuple[range, ...], start: int) -> int | None:
        if not order:
            return 0 if start == num_layers else None
        options = []
        for stop in range(start + 1, min(order[0].stop, num_layers) + 1):
            rest = least(order[1:], stop) if start in order[0] else None
            if rest is not None:
                options.append(max(stop - start, rest))
        return min(options, default=None)

    found = [size for order in permutations(held) if (size := least(order, 0)) is not None]
    merged = merge(groups)
    if merged is None:
        assert not found
    else:
        assert max(len(stage.layers) for stage in merged) == min(found)


def test_one_alone_holds_everything() -> None:
    check([alone("a", 4)], 4)
    assert dropped_bytes(model_of(4), [alone("a", 4)]) == 0
