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
    return Interval(mean(values), students(count - 1) * stdev(values) / count**0.5, count)


def students(freedom: float, confidence: float = CONFIDENCE) -> float:
    """By how many standard errors a mean is off at most, in so many of all cases."""
    from scipy.special import stdtrit  # not above: every command would wait for its import

    return float(stdtrit(freedom, (1 + confidence) / 2))
