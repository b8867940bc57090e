"""A restore brings every layer back, and every request's KV to one member, without losing any."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from systems.kunserve.exchange import Held, exchange_moves
from systems.kunserve.group import Stage, members
from systems.kunserve.moves import apply, grantable_slots
from systems.kunserve.plan import recover
from systems.kunserve.restore import assign, migration_moves
from systems.kunserve.weights import HOST, Rates, missing, restore_loads
from tests.examples import examples
from tests.unit.kunserve.cluster import in_pieces, moved, moves_of, ordered, places_of, throttled
from tests.unit.kunserve.strategies import QWEN_14B, check, clusters, grouped, model_of

RATES = Rates(peer=25e9, host=25e9)


@settings(deadline=None)
@given(cluster=clusters)
def test_every_missing_layer_is_loaded_once_from_where_it_is(
    cluster: tuple[list[int], int, bool],
) -> None:
    sizes, num_layers, tied = cluster
    groups = grouped(sizes, num_layers)
    wanted = [pair for group in groups for pair in missing(group, num_layers)]
    loads = restore_loads(wanted, groups, RATES, model_of(num_layers, tied=tied))
    assert [(load.member, load.layer) for load in loads] == wanted
    held = {stage.member: set(stage.layers) for group in groups for stage in group}
    for load in loads:
        assert load.source == HOST or (load.layer in held[load.source])
        assert load.source != load.member
    for member, layers in held.items():
        loaded = {load.layer for load in loads if load.member == member}
        assert loaded | layers == set(range(num_layers))
        assert not loaded & layers


def test_both_lanes_share_the_work() -> None:
    """A pair restores half a model each: from the peer and from the host, half of it each."""
    groups = grouped([2], 48)
    loads = restore_loads(missing(groups[0], 48), groups, RATES, QWEN_14B)
    by_source = [sum(load.source == source for load in loads) for source in (HOST, "i0", "i1")]
    assert sum(by_source) == 48
    assert all(count >= 10 for count in by_source)
    slow_host = restore_loads(missing(groups[0], 48), groups, Rates(25e9, 1e6), QWEN_14B)
    assert all(load.source != HOST for load in slow_host)


def test_what_no_instance_holds_comes_from_the_host() -> None:
    broken = [grouped([2], 4)[0][:1]]  # the second half has died with its member
    (load,) = restore_loads([("i0", 2)], broken, RATES, model_of(4))
    assert load.source == HOST


@examples(80)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 4),
    num_layers=st.integers(4, 12),
    region=st.integers(50, 400),
    fill=st.floats(0.1, 1.0),
)
def test_ongoing_requests_end_up_whole_at_one_member(
    seed: int, size: int, num_layers: int, region: int, fill: float
) -> None:
    """In the KV regions alone, as it is once the tails are weights again."""
    rng = np.random.default_rng(seed)
    (group,) = grouped([size], num_layers)
    room = dict.fromkeys(members(group), region)
    held: list[Held] = []
    while True:
        request = Held(len(held), int(rng.integers(1, 4)), group)
        longest = max(len(stage.layers) for stage in group)
        if min(room.values()) - request.blocks * longest < (1 - fill) * region:
            break
        held.append(request)
        for stage in group:
            room[stage.member] -= request.blocks * len(stage.layers)
    goes = assign(held, dict.fromkeys(members(group), region), num_layers)
    if goes is None:
        # What is assigned largest first to the emptiest fits, but for one request a member.
        most = sum(request.blocks for request in held) * num_layers + size * 3 * num_layers
        assert most > size * region
        return
    moves = in_pieces(migration_moves(held, goes, num_layers), 2)
    assert all(move.source != move.target for move in moves)
    order = ordered(moves, room)
    certain = grantable_slots(moves, room) is not None
    event(f"certain to end: {certain}, left: {bool(order.left)}")
    places = places_of(held)
    if certain:
        assert not order.left
    for move in order.first:
        assert room[move.target] >= move.slots
        apply(move, room)
        moved(places, move)
    if not order.left:
        assert all(member == goes[request] for (request, _), member in places.items())
    assert min(room.values()) >= 0


def test_requests_are_spread_over_the_members() -> None:
    (group,) = grouped([2], 4)
    held = [Held(k, blocks, group) for k, blocks in enumerate([5, 1, 3, 3])]
    goes = assign(held, {"i0": 100, "i1": 100}, 4)
    assert goes is not None
    loads = {name: sum(r.blocks for r in held if goes[r.request_id] == name) for name in room_of()}
    assert loads == {"i0": 6, "i1": 6}
    assert assign(held, {"i0": 20, "i1": 20}, 4) is None


def room_of() -> tuple[str, str]:
    return "i0", "i1"


@settings(deadline=None)
@given(cluster=clusters, dead=st.integers(0, 19))
def test_a_death_leaves_full_copies_after_the_fewest_loads(
    cluster: tuple[list[int], int, bool], dead: int
) -> None:
    sizes, num_layers, tied = cluster
    groups = grouped(sizes, num_layers)
    every = [stage.member for group in groups for stage in group]
    gone = every[dead % len(every)]
    found = recover(groups, gone)
    check(found, num_layers)
    left = [stage.member for group in found for stage in group]
    assert sorted([*left, gone]) == sorted(every)
    before = {stage.member: set(stage.layers) for group in groups for stage in group}
    wanted = [
        (stage.member, layer)
        for group in found
        for stage in group
        for layer in stage.layers
        if layer not in before[stage.member]
    ]
    assert all(before[s.member] <= set(s.layers) for group in found for s in group)
    assert len(wanted) == (
        0 if len(before[gone]) == num_layers else len(before[gone])
    )  # no layer more than the dead had
    loads = restore_loads(wanted, found, RATES, model_of(num_layers, tied=tied))
    assert len(loads) == len(wanted)
    for load in loads:  # from another group that has it, or the host: none of its own did
        assert load.source == HOST or load.layer in before[load.source]
        assert load.source not in (load.member, gone)


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.sampled_from([[1, 1], [1, 1, 1], [2, 2], [2, 1]]),
    done=st.floats(0, 1),
    dead=st.integers(0, 3),
)
def test_a_death_in_the_middle_of_an_exchange_loses_no_request(
    seed: int, sizes: list[int], done: float, dead: int
) -> None:
    """Some moves have ended. Who had KV at the dead member is computed again; all others' KV then
    moves among the survivors, to where their new stages are."""
    cluster = throttled(
        np.random.default_rng(seed), sizes, num_layers=8, kv_slots=60, layer_slots=9, max_blocks=3
    )
    first = ordered(moves_of(cluster), cluster.free).first
    places = places_of(cluster.held)
    for move in first[: int(done * len(first))]:
        moved(places, move)
    held = [
        Held(
            r.request_id,
            r.blocks,
            tuple(Stage(places[r.request_id, k], range(k, k + 1)) for k in range(8)),
        )
        for r in cluster.held
    ]
    gone = cluster.merged[dead % len(cluster.merged)].member
    found = recover([cluster.merged], gone)
    survivors = [r for r in held if all(place.member != gone for place in r.places)]
    after = places_of(survivors)
    moves = [move for group in found for move in exchange_moves(survivors, group)]
    for move in in_pieces(moves, 2):
        assert gone not in (move.source, move.target)
        moved(after, move)
    weights = {layer: s.member for group in found for s in group for layer in s.layers}
    assert all(member == weights[layer] for (_, layer), member in after.items())


def test_neighbours_share_what_a_member_in_the_middle_had() -> None:
    (found,) = recover(grouped([4], 48), "i1")
    assert [(s.member, s.layers) for s in found] == [
        ("i0", range(18)),
        ("i2", range(18, 36)),
        ("i3", range(36, 48)),
    ]
