"""Dropped layers as KV slots behind the KV region, and how the slots are emptied (§4.1, §4.2).

The paper maps the memory of dropped parameters to the tail of the KV buffer, whose start stays
(Fig. 8). Here slot ids are fixed. The KV region has slots 0 to `base_slots` - 1. The weights, laid
out layer by layer, are a grid of slots behind it. A slot of the grid may hold KV while no weights
that it overlaps are resident. Ids never change, so a later drop of other layers renumbers nothing.
Unlike in the paper, the tail may have holes where weights are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from harness.model_spec import ModelSpec


@dataclass(slots=True, frozen=True)
class Layout:
    """Where KV slots and weights of one instance are."""

    base_slots: int  # of the KV region
    slot_bytes: int
    grid_slots: int  # whole slots in the weights
    spans: tuple[tuple[range, ...], ...]  # by layer: the byte ranges of its weights

    def tail(self, resident: Iterable[int]) -> list[int]:
        """Slots behind the KV region that overlap no weights of the `resident` layers."""
        taken = {slot for layer in resident for slot in self.overlapping(layer)}
        grid = range(self.base_slots, self.base_slots + self.grid_slots)
        return [slot for slot in grid if slot not in taken]

    def overlapping(self, layer: int) -> set[int]:
        """Slots of the grid that the layer's weights overlap; the last may be beyond the grid."""
        return {
            self.base_slots + slot
            for span in self.spans[layer]
            for slot in range(span.start // self.slot_bytes, -(-span.stop // self.slot_bytes))
        }


def layout_of(model: ModelSpec, base_slots: int, slot_bytes: int) -> Layout:
    """The layout of one instance: embedding, layers, norm and head.

    The embedding belongs to layer 0, norm and head to the last layer, a tied embedding to both.
    Bytes are of all the instance's devices together: tensor parallelism divides slots and weights
    alike.
    """
    matrix = model.vocab_size * model.hidden_size * model.dtype_bytes
    starts = [matrix + k * model.layer_bytes for k in range(model.num_layers + 1)]
    spans = [(range(a, b),) for a, b in pairwise(starts)]
    spans[0] = (range(starts[1]),)
    end = (range(starts[-2], model.weight_bytes),)
    embedding = (range(matrix),) if model.tie_embeddings and model.num_layers > 1 else ()
    spans[-1] = (*embedding, *end) if model.num_layers > 1 else (range(model.weight_bytes),)
    return Layout(base_slots, slot_bytes, model.weight_bytes // slot_bytes, tuple(spans))


class SlotMove(NamedTuple):
    """The KV of one slot moves to another slot of the same instance."""

    source: int
    target: int


def vacate(
    used: Collection[int], free: Collection[int], leaving: Collection[int]
) -> tuple[list[SlotMove], list[int]]:
    """Moves that empty the slots `leaving`, where weights come back, and slots that find no room.

    used: slots that hold KV. free: slots that hold none; some may be leaving. Live KV moves to the
    lowest free slots that stay, from the highest slots first, so that KV without room is as near to
    the KV region as possible. No target is a source, so the moves may run in any order.
    """
    gone = set(leaving)
    targets = sorted(slot for slot in free if slot not in gone)
    sources = sorted((slot for slot in used if slot in gone), reverse=True)
    moves = [SlotMove(*pair) for pair in zip(sources, targets, strict=False)]
    return moves, sources[len(moves) :]


def leaving(layout: Layout, resident: Iterable[int], restored: Iterable[int]) -> list[int]:
    """The slots that can no longer hold KV once `restored` layers join the `resident` ones."""
    before = list(resident)
    after = set(layout.tail([*before, *restored]))
    return [slot for slot in layout.tail(before) if slot not in after]


def clear_layers(layout: Layout, layers: Iterable[int], used: Collection[int]) -> list[int]:
    """The layers that can come back now: no used slot overlaps their weights."""
    taken = set(used)
    return [layer for layer in layers if taken.isdisjoint(layout.overlapping(layer))]
