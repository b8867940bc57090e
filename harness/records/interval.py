"""The mean of a few values and how far it can be trusted: Student's t."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """`half`: from the mean to either end; None: one value has no interval."""

    mean: float
    half: float | None
    count: int


def interval(values: Sequence[float]) -> Interval:
    """The confidence interval of the mean of at least one value, all finite."""
    count = len(values)
    if count < 2:
        return Interval(mean(values), None, count)
    from scipy.special import stdtrit  # not above: every command would wait for its import

    reach = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
    return Interval(mean(values), reach * stdev(values) / count**0.5, count)
