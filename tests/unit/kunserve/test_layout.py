"""Slots are never lost, shared, or in weights, whatever is dropped, allocated and restored."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.group import shard_bytes
from systems.kunserve.layout import Layout, clear_layers, layout_of, leaving, vacate
from tests.unit.kunserve.strategies import QWEN_14B, model_of

MIB = 2**20


def weights_under(layout: Layout, slot: int) -> set[int]:
    """By the bytes: the layers whose weights lie in `slot`."""
    start = (slot - layout.base_slots) * layout.slot_bytes
    stop = start + layout.slot_bytes
    return {
        layer
        for layer, spans in enumerate(layout.spans)
        if any(span.start < stop and start < span.stop for span in spans)
    }


def test_half_the_layers_of_14b_are_half_its_weights_as_slots() -> None:
    layout = layout_of(QWEN_14B, base_slots=1000, slot_bytes=3 * MIB)  # 16 tokens, all layers
    second_half = layout.tail(resident=range(24))
    lost = shard_bytes(QWEN_14B, range(24, 48)) - len(second_half) * layout.slot_bytes
    assert 0 <= lost < 2 * layout.slot_bytes  # at the border, and at the end
    assert layout.tail(resident=range(48)) == []
    assert len(layout.tail(resident=[])) == QWEN_14B.weight_bytes // layout.slot_bytes


def test_the_slots_below_stay_where_they_are() -> None:
    """§4.1: "preserve the start pointer", only the end moves."""
    layout = layout_of(QWEN_14B, base_slots=1000, slot_bytes=3 * MIB)
    assert min(layout.tail(resident=range(0))) == 1000
    assert min(layout.tail(resident=range(24))) > 1000  # behind what is resident


def test_a_tied_embedding_is_kept_for_the_head() -> None:
    model = model_of(8, tied=True)
    layout = layout_of(model, base_slots=0, slot_bytes=MIB)
    matrix = model.vocab_size * model.hidden_size * 2
    assert min(layout.tail(resident=range(4, 8))) * MIB >= matrix
    assert min(layout.tail(resident=range(4))) * MIB >= matrix + 4 * model.layer_bytes
    assert min(layout.tail(resident=range(3, 6))) == 0  # nobody's here
    untied = layout_of(model_of(8), base_slots=0, slot_bytes=MIB)
    assert min(untied.tail(resident=range(4, 8))) == 0


def test_live_slots_move_to_the_lowest_that_stay() -> None:
    moves, stuck = vacate(used=[0, 5, 6, 7], free=[1, 2, 4, 8], leaving=[4, 5, 6, 7, 8])
    assert (moves, stuck) == ([(7, 1), (6, 2)], [5])  # 4 and 8 are free, and are leaving too
    assert vacate(used=[0], free=[1], leaving=[4]) == ([], [])


@settings(deadline=None, max_examples=40)
@given(
    num_layers=st.integers(1, 6),
    tied=st.booleans(),
    slot_bytes=st.integers(20, 900).map(lambda n: n * MIB),
    resident=st.sets(st.integers(0, 5)),
)
def test_the_tail_is_exactly_what_no_resident_weights_lie_in(
    num_layers: int, tied: bool, slot_bytes: int, resident: set[int]
) -> None:
    model = model_of(num_layers, tied=tied)
    layout = layout_of(model, base_slots=3, slot_bytes=slot_bytes)
    resident = {layer for layer in resident if layer < num_layers}
    grid = range(3, 3 + model.weight_bytes // slot_bytes)
    expected = [slot for slot in grid if not weights_under(layout, slot) & resident]
    assert layout.tail(resident) == expected


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_layers=st.integers(2, 6),
    tied=st.booleans(),
    slot_bytes=st.integers(60, 900).map(lambda n: n * MIB),
)
def test_through_drops_and_restores_no_slot_is_lost_or_shared_or_in_weights(
    seed: int, num_layers: int, tied: bool, slot_bytes: int
) -> None:
    """A small instance lives: requests take and give back slots, layers go and come."""
    rng = np.random.default_rng(seed)
    layout = layout_of(model_of(num_layers, tied=tied), base_slots=8, slot_bytes=slot_bytes)
    resident = set(range(num_layers))
    owner: dict[int, int] = {}  # slot -> what is in it
    stored = 0
    for _ in range(40):
        valid = {*range(8), *layout.tail(resident)}
        assert set(owner) <= valid
        assert all(not weights_under(layout, slot) & resident for slot in owner if slot >= 8)
        contents = sorted(owner.values())
        assert len(set(contents)) == len(contents)
        kind = rng.integers(4)
        free = sorted(valid - set(owner))
        if kind == 0 and free:
            owner[int(rng.choice(free))] = stored
            stored += 1
        elif kind == 1 and owner:
            del owner[int(rng.choice(sorted(owner)))]
        elif kind == 2:
            resident -= {int(layer) for layer in rng.integers(0, num_layers, 2)}
        else:
            back = {int(layer) for layer in rng.integers(0, num_layers, 3)} - resident
            gone = leaving(layout, resident, back)
            moves, stuck = vacate(sorted(owner), free, gone)
            for move in moves:
                assert move.target not in owner
                owner[move.target] = owner.pop(move.source)
            assert sorted(owner.values()) == contents
            room = len([slot for slot in free if slot not in gone])
            assert len(stuck) == max(0, len(moves) + len(stuck) - room)
            ready = clear_layers(layout, sorted(back), owner)
            assert ready == sorted(back) or stuck
            resident |= set(ready)
