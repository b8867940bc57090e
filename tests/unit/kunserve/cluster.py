"""Members whose KV pools are full when their parameters are dropped, in slots of one layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from systems.kunserve import moves as order_of_moves
from systems.kunserve.exchange import Held, exchange_moves
from systems.kunserve.group import Group
from systems.kunserve.merge import merge
from systems.kunserve.moves import Move
from tests.unit.kunserve.strategies import QWEN_14B, grouped

SLOT_BYTES = 16 * QWEN_14B.kv_bytes_per_token // 48  # 16 tokens, one layer: 64 KiB
GROUPS = [[1, 1], [1, 1, 1], [1] * 4, [1] * 8, [2, 1], [2, 2], [3, 2], [4, 2], [4, 4], [3, 1]]

Places = dict[tuple[int, int], str]  # (request, layer) -> where its KV is


@dataclass
class Throttled:
    """Groups whose memory is full, and the group that they merge into."""

    held: list[Held]
    merged: Group
    free: dict[str, int]  # slots, with the dropped layers' own


def throttled(
    rng: np.random.Generator,
    sizes: list[int],
    *,
    num_layers: int,
    kv_slots: int,
    layer_slots: int,
    max_blocks: int,
    fill: float = 1.0,
) -> Throttled:
    """Groups of `sizes` instances, each with `kv_slots` and `layer_slots` for a layer dropped, run
    requests of up to `max_blocks` until their memory is full (or `fill` of it); then all merge."""
    groups = grouped(sizes, num_layers)
    merged = merge(groups)
    assert merged is not None
    held, free, kept = [], {}, {stage.member: stage.layers for stage in merged}
    for group in groups:
        room = {s.member: kv_slots + layer_slots * (num_layers - len(s.layers)) for s in group}
        limit = {member: int(slots * (1 - fill)) for member, slots in room.items()}
        while True:
            blocks = int(rng.integers(1, max_blocks + 1))
            fit = min((room[s.member] - limit[s.member]) // len(s.layers) for s in group)
            if fit < 1:
                break
            request = Held(len(held), min(blocks, fit), group)
            held.append(request)
            for stage in group:
                room[stage.member] -= request.blocks * len(stage.layers)
        for stage in group:
            more = layer_slots * (len(stage.layers) - len(kept[stage.member]))
            free[stage.member] = room[stage.member] + more
    return Throttled(held, merged, free)


def moves_of(cluster: Throttled, layers_per_move: int = 1) -> list[Move]:
    return in_pieces(exchange_moves(cluster.held, cluster.merged), layers_per_move)


def in_pieces(moves: Iterable[Move], most_layers: int) -> list[Move]:
    """The same moves with `most_layers` at once, at most."""
    return [
        move._replace(layers=layers, slots=move.slots // len(move.layers) * len(layers))
        for move in moves
        for start in range(move.layers.start, move.layers.stop, most_layers)
        for layers in [range(start, min(start + most_layers, move.layers.stop))]
    ]


class Order(NamedTuple):
    first: list[Move]
    left: list[Move]  # no room


def ordered(moves: Iterable[Move], free: Mapping[str, int]) -> Order:
    every = list(moves)
    first = order_of_moves.ordered(every, free)
    placed = {id(move) for move in first}
    return Order(first, [move for move in every if id(move) not in placed])


def places_of(held: list[Held]) -> Places:
    return {(r.request_id, layer): p.member for r in held for p in r.places for layer in p.layers}


def moved(places: Places, move: Move) -> None:
    """Raises AssertionError where the KV is not at the move's source."""
    for layer in move.layers:
        assert places[move.request_id, layer] == move.source
        places[move.request_id, layer] = move.target


def full_14b(sizes: list[int], seed: int = 0) -> Throttled:
    """Qwen-2.5-14B on 80 GB, with pools of 43.5 GiB full of requests of up to 4,096 tokens."""
    return throttled(
        np.random.default_rng(seed),
        sizes,
        num_layers=48,
        kv_slots=237_500 // 16 * 48,
        layer_slots=QWEN_14B.weight_bytes // 48 // SLOT_BYTES,
        max_blocks=256,
    )


small = st.fixed_dictionaries(
    {
        "num_layers": st.integers(8, 12),
        "kv_slots": st.integers(20, 200),
        "layer_slots": st.integers(1, 20),
        "max_blocks": st.integers(1, 6),
        "fill": st.sampled_from([1.0, 1.0, 0.7]),
    }
)
