from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from harness.records.percentiles import distribution, min_samples


@pytest.mark.parametrize(
    ("percentile", "samples"), [(50, 11), (90, 64), (95, 130), (99, 662), (99.9, 6636)]
)
def test_minimum_sample_sizes_are_those_of_mlperf(percentile: float, samples: int) -> None:
    assert min_samples(percentile) == samples
    assert binom.cdf(1, samples, 1 - percentile / 100) <= 0.01
    assert binom.cdf(1, samples - 1, 1 - percentile / 100) > 0.01


def test_percentiles_appear_as_the_sample_supports_them() -> None:
    values = np.arange(1, 663, dtype=np.float64)
    assert distribution(values[:-1])["p99"] is None
    row = distribution(values)
    assert row["num_samples"] == 662
    assert row["mean"] == pytest.approx(331.5)
    assert row["p50"] == pytest.approx(331.5)
    assert row["p99"] == pytest.approx(1 + 0.99 * 661)
    assert row["p99.9"] is None
    assert distribution(np.arange(6636.0))["p99.9"] == pytest.approx(0.999 * 6635)


def test_empty_sample_has_nothing() -> None:
    assert set(distribution(np.empty(0)).values()) == {0, None}
