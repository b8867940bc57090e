"""How much memory an image or audio model leaves free at its peak throughput (section 4, Fig. 3).

The batch grows until the throughput saturates; a larger one would only hold more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class BatchSample:
    batch: int
    items_per_s: float
    free_bytes: int


@dataclass(slots=True, frozen=True)
class Plateau:
    peak: BatchSample
    samples: tuple[BatchSample, ...]  # all that were measured, in order


def sweep(measure: Callable[[int], BatchSample | None], plateau_gain: float) -> Plateau:
    """Batches of 1, 2, 4, … until one has no more than (1 + plateau_gain) times the throughput of
    the one before, which is then the peak.

    measure: runs a batch; None: it does not fit, and the one before is the peak. Raises ValueError
    where not even one item fits.
    """
    if not plateau_gain > 0:
        raise ValueError(f"plateau_gain={plateau_gain:g} must be above 0")
    samples: list[BatchSample] = []
    batch = 1
    while (sample := measure(batch)) is not None:
        samples.append(sample)
        if batch > 1 and sample.items_per_s <= samples[-2].items_per_s * (1 + plateau_gain):
            return Plateau(samples[-2], tuple(samples))
        batch *= 2
    if not samples:
        raise ValueError("a batch of one does not fit on the device")
    return Plateau(samples[-1], tuple(samples))
