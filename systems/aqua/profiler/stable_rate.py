"""The highest rate of requests that an LLM serves within its SLA (section 4.1, Fig. 4).

A binary search within a range comes first, then a linear search in smaller steps, up and down, for
a local maximum. Memory is measured at that rate. The paper does not give the steps of the binary
search. Nor does it say which TTFT of a run must be below 1 s; the caller chooses
(`RateSample.ttft_s`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.configuration.checks import positive, require


@dataclass(slots=True, frozen=True)
class RateSample:
    """One measured rate."""

    rate_per_s: float
    ttft_s: float
    tbt_p99_s: float
    free_bytes: int


@dataclass(kw_only=True, slots=True)
class RateConfig:
    """The SLA and the search. Raises ValueError for values out of range."""

    ttft_s: float  # the SLA: TTFT below it
    tbt_p99_s: float  # the SLA: P99 TBT below it
    min_rate_per_s: float
    max_rate_per_s: float
    binary_step_per_s: float
    linear_step_per_s: float

    def __post_init__(self) -> None:
        least, most = self.min_rate_per_s, self.max_rate_per_s
        told = f"min_rate_per_s={least:g} must be above 0 and at most max_rate_per_s={most:g}"
        require(0 < least <= most, told)
        positive(self, "", "ttft_s", "tbt_p99_s", "binary_step_per_s", "linear_step_per_s")


@dataclass(slots=True, frozen=True)
class StableRate:
    """The result of the search."""

    best: RateSample | None  # None: no rate that was tried meets the SLA
    samples: tuple[RateSample, ...]  # in the order of measurement


def stable_rate(measure: Callable[[float], RateSample], config: RateConfig) -> StableRate:
    """The highest rate that meets the SLA, by a binary and a linear search.

    measure: serves requests at a rate; called at most once for each rate. Rates are between one
    linear step and `max_rate_per_s`.
    """
    tried: dict[float, RateSample] = {}

    def meets(rate: float) -> bool:
        if rate not in tried:
            tried[rate] = measure(rate)
        sample = tried[rate]
        return sample.ttft_s < config.ttft_s and sample.tbt_p99_s < config.tbt_p99_s

    best = _binary(meets, config)
    step = config.linear_step_per_s
    if best is None:
        best = _first_below(meets, config.min_rate_per_s, step)
    if best is not None:
        while best + step <= config.max_rate_per_s and meets(best + step):
            best += step
    return StableRate(None if best is None else tried[best], tuple(tried.values()))


def _binary(meets: Callable[[float], bool], config: RateConfig) -> float | None:
    """The highest coarse step that meets the SLA, if all steps above it fail; None: none does."""
    step = config.binary_step_per_s
    low, high = 0, int((config.max_rate_per_s - config.min_rate_per_s) / step + 1e-9)
    best = None
    while low <= high:
        middle = (low + high) // 2
        rate = config.min_rate_per_s + middle * step
        if meets(rate):
            best, low = rate, middle + 1
        else:
            high = middle - 1
    return best


def _first_below(meets: Callable[[float], bool], rate: float, step: float) -> float | None:
    while (rate := rate - step) > 0:
        if meets(rate):
            return rate
    return None
