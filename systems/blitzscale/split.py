"""ZigZag (§5.2) with batches that run to their end once they are launched.

The device runs a batch over a route that is fixed at its launch: layers [0, T) on the loading
instance, the rest on the overloaded one. So a batch is not put back between two layers. It is
launched late instead: as late as its layers on the target are done just when the source is free,
and with the T that ends it first. That is the paper's delay ("delaying request scheduling on the
source, more layers come") with the zigzag folded into one pass. On Fig. 15 it costs one layer a
batch at most: batches end at 7, 13, 18, 22, 25, 29, where the zigzag has 7, 12, 17, 21, 24, 27.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING_S = 1e-9


@dataclass(slots=True, frozen=True)
class Split:
    """A batch's first `on_target` layers run on the target, from `start_s` on."""

    on_target: int
    start_s: float
    target_free_s: float  # after it
    source_free_s: float


def split(
    ready_s: Sequence[float], layer_s: float, now_s: float, target_free_s: float,
    source_free_s: float,
) -> Split:  # fmt: skip
    """Where and when the next batch runs, of `layer_s` a layer.

    `ready_s`: when each layer is at the target; the two instances have done what they are at, at
    `target_free_s` and `source_free_s`. Of equally early ends the one that leaves less to the
    source.
    """
    count, best, best_end_s = len(ready_s), None, float("inf")
    source_s = max(now_s, source_free_s)
    for limit in range(count):
        start_s = max(now_s, target_free_s, ready_s[limit - 1]) if limit else now_s
        on_source_s = max(source_s, start_s + limit * layer_s)
        end_s = on_source_s + (count - limit) * layer_s
        if end_s <= best_end_s + ROUNDING_S:
            best_end_s = end_s
            start_s = on_source_s - limit * layer_s
            best = Split(limit, start_s, on_source_s if limit else target_free_s, end_s)
    assert best is not None, "a model has a layer"
    return best
