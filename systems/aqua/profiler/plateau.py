"""How much memory an image or audio model leaves free at its peak throughput (section 4, Fig. 3).

The batch grows until the throughput saturates; a larger batch would only take more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class BatchSample:
    """One measured batch size."""

    batch: int
    items_per_s: float
    free_bytes: int


@dataclass(slots=True, frozen=True)
class Plateau:
    """The result of a sweep."""

    peak: BatchSample
    samples: tuple[BatchSample, ...]  # all measured samples, in order


def sweep(measure: Callable[[int], BatchSample | None], plateau_gain: float) -> Plateau:
    """Measures batches of 1, 2, 4, … until the throughput grows by no more than `plateau_gain`.

    The peak is the batch before the one that ends the sweep. measure: runs a batch; None: it does
    not fit, which ends the sweep too. plateau_gain: a share of the throughput before. Raises
    ValueError if not even one item fits.
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
