"""Intervals over the requests of one run."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm, t

from harness.records.percentiles import distribution
from harness.records.uncertainty import (
    CLUSTERS,
    effective_samples,
    of_gaps,
    of_latency,
    of_ratio,
    of_share,
    students,
)
from tests.unit.metrics.service import Service, steady


def correlated(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    """An autoregressive series: its effective share of samples is (1 - phi) / (1 + phi)."""
    shocks = rng.normal(size=count)
    shocks[0] /= (1 - phi**2) ** 0.5
    values: np.ndarray = lfilter([1.0], [1.0, -phi], shocks)
    return values


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, 0.99])
def test_effective_samples_are_those_of_theory(phi: float) -> None:
    rng = np.random.default_rng(0)
    shares = [effective_samples(correlated(rng, 20_000, phi)) / 20_000 for _ in range(10)]
    assert np.mean(shares) == pytest.approx((1 - phi) / (1 + phi), rel=0.15)


def test_a_constant_or_alternating_series_has_all_its_samples() -> None:
    assert effective_samples(np.ones(50)) == 50
    assert effective_samples(np.tile([0.0, 1.0], 50)) == 100


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_95_of_100_intervals_hold_the_true_values(phi: float) -> None:
    rng = np.random.default_rng(1)
    scale = (1 - phi**2) ** 0.5  # of a standard normal series
    true = {"mean": 0.0, "p50": 0.0, "p90": 1.2816, "p99": 2.3263}
    held = dict.fromkeys(true, 0)
    for _ in range(200):
        found = of_latency(correlated(rng, 4000, phi) * scale)
        for name, value in true.items():
            low, high = found[name]
            held[name] += (low is None or low <= value) and (high is None or value <= high)
    assert all(180 <= count <= 200 for count in held.values()), held


@pytest.mark.parametrize("count", [3, 10, 30])
def test_intervals_of_the_mean_of_few_values_are_students(count: int) -> None:
    """With a normal's reach 95 of 100 would be 80 of three values, and 90 of ten."""
    rng, held = np.random.default_rng(6), 0
    for _ in range(400):
        low, high = of_latency(rng.normal(size=count))["mean"]
        held += low <= 0 <= high
    assert held >= 368


def test_the_table_of_students_t_is_scipys_between_its_rows_too() -> None:
    for freedom in [*np.arange(2.0, 12.0, 0.25), *range(12, 400), 1e6]:
        exact = float(t.ppf(0.975, freedom))
        assert exact * (1 - 1e-5) <= students(freedom) <= exact * 1.02, freedom
    assert students(1.0) == pytest.approx(float(t.ppf(0.975, 1)))


def test_the_mean_of_what_is_never_below_0_is_not_either() -> None:
    low, high = of_latency(np.array([0.1, 0.1, 9.0]))["mean"]
    assert low == 0.0 < 9.0 < high
    assert of_latency(np.array([-0.1, 0.1, 9.0]))["mean"][0] < 0


@pytest.mark.parametrize("true", [0.5, 0.9])
def test_intervals_of_the_share_of_correlated_requests_or_tokens_hold_it_too(true: float) -> None:
    """Some 92 of 100; of independent requests' intervals it would be about 40. Tokens are of
    answers whose lengths are unequal."""
    rng, lengths = np.random.default_rng(1), np.random.default_rng(2)
    held = {"request": 0, "token": 0}
    for _ in range(200):
        level = norm.cdf(correlated(rng, 4000, 0.9) * (1 - 0.9**2) ** 0.5)  # uniform, of mean 1/2
        asked = lengths.integers(1, 500, 4000)
        on_time = lengths.binomial(asked, level ** (1 / true - 1))  # its mean is the true share
        found = {"request": of_share(level < true), "token": of_ratio(on_time, asked)}
        for name, ends in found.items():
            assert ends is not None
            held[name] += ends[0] <= true <= ends[1]
    assert all(176 <= count <= 198 for count in held.values()), held


def test_the_same_run_has_the_same_interval() -> None:
    flags = np.arange(90) % 7 > 1
    assert of_share(flags) == of_share(flags.copy())


def test_95_of_100_intervals_of_a_share_hold_it_also_near_1() -> None:
    rng = np.random.default_rng(2)
    for true in (0.5, 0.9, 0.99):
        held = 0
        for _ in range(200):
            ends = of_share(rng.random(600) < true)
            assert ends is not None
            held += ends[0] <= true <= ends[1]
        assert held >= 180, true
    low, high = of_share(np.ones(300, bool)) or ()
    assert 0.98 < low < high == 1.0
    assert of_share(np.zeros(300, bool)) == pytest.approx([0.0, 1 - low])


@pytest.mark.parametrize("count", [1, 40])
def test_resamples_that_are_all_alike_are_no_interval(count: int) -> None:
    assert of_ratio(np.full(count, 5), np.full(count, 10)) is None


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_95_of_100_intervals_of_gaps_hold_the_true_values_though_a_requests_gaps_are_alike(
    phi: float,
) -> None:
    """Half of a gap's variance is its request's, and requests have unequal numbers of gaps; phi:
    neighbouring requests correlate. Intervals of as many independent gaps hold half of the means
    or less. At 0.9 some 90 of 100 hold, as of shares."""
    rng = np.random.default_rng(4)
    true = {"mean": 0.0, "p50": 0.0, "p90": 1.2816, "p99": 2.3263}  # of a standard normal
    held, alone = dict.fromkeys(true, 0), 0
    for _ in range(100):
        counts = rng.integers(0, 40, 2000)
        level = correlated(rng, 2000, phi) * (1 - phi**2) ** 0.5
        gaps = (np.repeat(level, counts) + rng.normal(size=counts.sum())) / 2**0.5
        found = of_gaps(gaps, counts, distribution(gaps))
        for name, value in true.items():
            low, high = found[name]
            held[name] += (low is None or low <= value) and (high is None or value <= high)
        reach = 1.96 * gaps.std() / len(gaps) ** 0.5
        alone += abs(gaps.mean()) <= reach
    assert all(count >= (84 if phi else 90) for count in held.values()), held
    assert alone <= 55


def test_an_interval_of_gaps_is_between_gaps_of_the_run_and_holds_its_value() -> None:
    rng = np.random.default_rng(5)
    counts, few = rng.integers(0, 9, 500), np.array([7] * (CLUSTERS - 1))
    gaps = rng.integers(1, 20, counts.sum()) / 8  # many alike
    known = distribution(gaps)
    found = of_gaps(gaps, counts, known)
    assert found.keys() == {"mean", "p50", "p90", "p95", "p99"}
    for name, (low, high) in found.items():
        assert low <= known[name] <= high
        assert name == "mean" or {low, high} <= {*gaps}
    assert found == of_gaps(gaps, counts[counts > 0], known), "an answer of one token has no gap"
    assert of_gaps(gaps[: few.sum()], few, distribution(gaps[: few.sum()])) == {}


def test_a_percentile_of_gaps_that_few_requests_made_has_no_upper_end() -> None:
    """Ten of 300 requests have all the long gaps: another ten could have had more."""
    gaps = np.full(300 * 20, 0.02)
    gaps[: 10 * 20 : 3] = 0.5 + np.arange(67) / 1000
    low, high = of_gaps(gaps, np.full(300, 20), distribution(gaps))["p99"]
    assert low == 0.02
    assert high is None or high > 0.5


def test_what_the_sample_does_not_reach_has_no_end() -> None:
    rng = np.random.default_rng(3)
    low, high = of_latency(correlated(rng, 700, 0.9))["p99"]
    assert low is not None
    assert high is None
    assert "p99" not in of_latency(rng.normal(size=600))
    assert "p99.9" not in of_latency(rng.normal(size=6635))
    low, high = of_latency(rng.normal(size=40_000))["p99.9"]
    assert low < 3.0902 < high  # of a standard normal
    assert of_latency(np.array([1.0])) == {}


def test_a_summary_has_intervals_around_its_values() -> None:
    summary = steady(300).summary(0.2, 0.05)
    within = summary["intervals_95"]
    for name in ("ttft_s", "tpot_s", "tbt_s", "itl_chunk_s", "e2e_s"):
        for column in ("mean", "p50", "p90"):
            low, high = within[name][column]
            assert low < summary[name][column] < high
    for kind, (low, high) in within["slo_attainment"].items():
        assert low < summary["slo_attainment"][kind] < high
    assert within["slo_attainment"].keys() == {"token", "request"}
    assert within["goodput_per_s"][0] < summary["goodput_per_s"] < within["goodput_per_s"][1]


def test_a_run_in_which_nothing_ended_has_no_latency_intervals() -> None:
    service = Service((0.0, 2), (1.0, 2))
    service.fail(0)
    service.fail(1)
    assert service.summary()["intervals_95"]["ttft_s"] == {}
