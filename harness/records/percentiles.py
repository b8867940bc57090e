"""A sample's mean and percentiles, and how many samples a percentile needs to mean anything.

The rule is MLPerf Inference's early stopping (LoadGen, confidence 99 %, tolerance 0): enough
samples that, were the true percentile above the second-largest value, seeing so few beyond it
would have a chance of 1 % at most. It presumes independent samples; gaps between tokens of one
batch are not, so their percentiles are softer than the count suggests.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
CONFIDENCE = 0.99


@cache
def min_samples(percentile: float) -> int:
    """The smallest n for which at most one of n samples beyond the percentile (0..100) has a
    probability of 1 − CONFIDENCE or less: 11 for P50, 64, 130, 662, and 6,636 for P99.9."""
    below = percentile / 100
    n = 1
    while below**n + n * (1 - below) * below ** (n - 1) > 1 - CONFIDENCE:
        n += 1
    return n


def distribution(values: npt.NDArray[np.float64]) -> dict[str, float | int | None]:
    """num_samples, mean, p50, p90, p95, p99 and p99.9 of the finite `values`; None: too few.

    Percentiles interpolate linearly between order statistics.
    """
    values = values[np.isfinite(values)]
    row: dict[str, float | int | None] = {
        "num_samples": len(values),
        "mean": float(values.mean()) if len(values) else None,
    }
    supported = [p for p in PERCENTILES if len(values) >= min_samples(p)]
    found = np.percentile(values, supported).tolist() if supported else []
    known = dict(zip(supported, found, strict=True))
    return row | {f"p{p:g}": known.get(p) for p in PERCENTILES}
