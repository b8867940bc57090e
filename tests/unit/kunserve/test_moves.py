"""The exchange ends from full pools, in whatever order, beside requests that come and end."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.kunserve.group import members
from systems.kunserve.moves import (
    Move,
    apply,
    fits,
    grantable_slots,
    largest_incoming,
    margins,
)
from systems.kunserve.plan import throughput_greedy
from tests.examples import examples
from tests.unit.kunserve.cluster import (
    GROUPS,
    SLOT_BYTES,
    full_14b,
    moved,
    moves_of,
    ordered,
    places_of,
    small,
    throttled,
)
from tests.unit.kunserve.strategies import QWEN_14B, singles


def merges_of_algorithm_1() -> list[list[int]]:
    """The sizes of the groups that it makes one of, of up to eight instances of 14B: from what one
    plan left to what any later one makes of that."""
    replica, found = QWEN_14B.weight_bytes, set()
    for count in range(2, 9):
        for earlier, later in combinations(range(count), 2):
            before = throughput_greedy(singles(count, 48), earlier * replica, QWEN_14B).groups
            after = throughput_greedy(before, (later - earlier) * replica, QWEN_14B).groups
            for group in after:
                parts = [part for part in before if set(members(part)) <= set(members(group))]
                found.add(tuple(sorted(len(part) for part in parts)))
    return [list(sizes) for sizes in sorted(found) if len(sizes) > 1]


def test_what_algorithm_1_may_merge() -> None:
    assert len(merges_of_algorithm_1()) == 28


@pytest.mark.parametrize("sizes", merges_of_algorithm_1(), ids=str)
def test_it_ends_from_full_pools(sizes: list[int]) -> None:
    cluster = full_14b(sizes)
    moves = moves_of(cluster, layers_per_move=12)
    assert grantable_slots(moves, cluster.free) is not None
    order = ordered(moves, cluster.free)
    assert not order.left
    places, room = places_of(cluster.held), dict(cluster.free)
    for move in order.first:
        assert room[move.target] >= move.slots
        apply(move, room)
        moved(places, move)
    weights = {layer: s.member for s in cluster.merged for layer in s.layers}
    assert all(member == weights[layer] for (_, layer), member in places.items())


def test_two_full_pools_exchange_more_than_a_drop_frees() -> None:
    """The figures of the trap: half a pool is 21.7 GiB each way, and half the weights 13.8."""
    cluster = full_14b([1, 1])
    moves = moves_of(cluster)
    for member in ("i0", "i1"):
        sent = sum(move.slots for move in moves if move.source == member)
        assert sent > cluster.free[member]
        assert sent * SLOT_BYTES / 2**30 == pytest.approx(21.7, abs=0.1)
        assert cluster.free[member] * SLOT_BYTES / 2**30 == pytest.approx(13.8, abs=0.1)


def test_a_merge_of_three_and_one_leaves_some_remote() -> None:
    """No split without a load has a stage under 16 layers: one member drops nothing, and its full
    pool has no room for its stage's KV of the fourth's requests. Algorithm 1 never merges so."""
    cluster = full_14b([3, 1])
    assert [len(stage.layers) for stage in cluster.merged] == [16, 8, 12, 12]
    order = ordered(moves_of(cluster, layers_per_move=12), cluster.free)
    left, all_slots = (
        sum(move.slots for move in moves) for moves in (order.left, [*order.first, *order.left])
    )
    assert 0.2 < left / all_slots < 0.35
    assert "i0" in {move.target for move in order.left}


def test_both_directions_carry_kv_at_once() -> None:
    cluster = full_14b([1, 1])
    order = ordered(moves_of(cluster), cluster.free)
    first = [(move.source, move.target) for move in order.first[:1000]]
    assert 400 < first.count(("i0", "i1")) < 600


def test_smaller_moves_end_their_remote_attention_first() -> None:
    moves = [Move(k, range(1), "a", "b", slots) for k, slots in enumerate([5, 1, 3])]
    assert [move.slots for move in ordered(moves, {"a": 0, "b": 9}).first] == [1, 3, 5]


@examples(150)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.sampled_from(GROUPS),
    small=small,
    piece=st.integers(1, 3),
)
def test_no_member_ever_holds_more_than_it_has(
    seed: int, sizes: list[int], small: dict[str, int], piece: int
) -> None:
    cluster = throttled(np.random.default_rng(seed), sizes, **small)
    moves = moves_of(cluster, piece)
    order = ordered(moves, cluster.free)
    assert sorted([*order.first, *order.left], key=repr) == sorted(moves, key=repr)
    room = dict(cluster.free)
    for move in order.first:
        assert fits(move, room)
        apply(move, room)
    assert not any(fits(move, room) for move in order.left)
    if grantable_slots(moves, cluster.free) is not None:
        assert not order.left


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.sampled_from(GROUPS),
    small=small,
    piece=st.integers(1, 3),
)
def test_any_order_ends_beside_requests_that_take_what_is_grantable(
    seed: int, sizes: list[int], small: dict[str, int], piece: int
) -> None:
    """The theorem of moves.py, by random interleaving: several moves under way at once, new
    requests that take room as far as `grantable_slots` lets them and end."""
    rng = np.random.default_rng(seed)
    cluster = throttled(rng, sizes, **small)
    waiting, room = moves_of(cluster, piece), dict(cluster.free)
    if grantable_slots(waiting, room) is None:
        return
    flying: list[Move] = []
    taken: list[tuple[str, int]] = []
    places = places_of(cluster.held)
    while waiting or flying:
        assert min(room.values()) >= 0
        kind = rng.integers(4)
        ready = [move for move in waiting if fits(move, room)]
        assert ready or flying, "stuck"
        if kind == 0:
            name = str(rng.choice(sorted(room)))
            grantable = grantable_slots(waiting, room, flying)
            assert grantable is not None, "the condition has ended"
            slots = grantable[name]
            room[name] -= slots
            taken.append((name, slots))
        elif kind == 1 and taken:
            name, slots = taken.pop(int(rng.integers(len(taken))))
            room[name] += slots
        elif kind == 2 and flying:
            move = flying.pop(int(rng.integers(len(flying))))
            room[move.source] += move.slots
            moved(places, move)
        elif ready:
            move = ready[int(rng.integers(len(ready)))]
            waiting.remove(move)
            room[move.target] -= move.slots
            flying.append(move)


@examples(100)
@given(seed=st.integers(0, 2**32 - 1), sizes=st.sampled_from(GROUPS), small=small)
def test_what_has_no_room_moves_when_requests_end(
    seed: int, sizes: list[int], small: dict[str, int]
) -> None:
    """Uneven stages of a small model can need more than a drop frees: the exchange then ends with
    the requests, whose attention stays remote until then."""
    cluster = throttled(np.random.default_rng(seed), sizes, **small)
    places, room = places_of(cluster.held), dict(cluster.free)
    waiting, alive = moves_of(cluster), list(cluster.held)
    while waiting:
        order = ordered(waiting, room)
        for move in order.first:
            apply(move, room)
            moved(places, move)
        waiting = order.left
        if waiting:
            ended = alive.pop(0)
            waiting = [move for move in waiting if move.request_id != ended.request_id]
            for place in ended.places:
                for layer in place.layers:
                    room[places.pop((ended.request_id, layer))] += ended.blocks
    weights = {layer: s.member for s in cluster.merged for layer in s.layers}
    assert all(member == weights[layer] for (_, layer), member in places.items())
    assert min(room.values()) >= 0


def test_without_its_reserve_two_full_pools_wait_for_each_other() -> None:
    """What `grantable_slots` is for: new requests took all that the drop freed."""
    moves = [Move(0, range(1), "a", "b", 5), Move(1, range(1), "b", "a", 5)]
    free = {"a": 8, "b": 8}
    assert grantable_slots(moves, free) == {"a": 3, "b": 3}
    assert not ordered(moves, {"a": 5, "b": 5}).left
    assert ordered(moves, {"a": 4, "b": 4}).left == moves
    assert margins(moves, free) == free
    assert largest_incoming(moves) == {"a": 5, "b": 5}
