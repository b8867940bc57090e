"""Arrival processes against theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workloads.arrivals import (
    ArrivalsConfig,
    BurstConfig,
    RampConfig,
    RateProfile,
    StageConfig,
    profile,
    staged_units,
    unit_process,
)


def config(
    kind: str = "poisson",
    burst: BurstConfig | None = None,
    ramp: RampConfig | None = None,
    stages: list[StageConfig] | None = None,
) -> ArrivalsConfig:
    return ArrivalsConfig(
        kind=kind, rate_per_s=None, cv=None, burst=burst, ramp=ramp, stages=stages
    )


def stages(*pairs: tuple[float, float]) -> list[StageConfig]:
    return [StageConfig(seconds=seconds, rate=rate) for seconds, rate in pairs]


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_gaps_are_gamma_with_the_cv_asked_for(cv: float) -> None:
    times = profile(config(), 4.0, 0.5).times(unit_process(50_000, cv, rng()))
    gaps = np.diff(times, prepend=0.0)
    theory = stats.gamma(1 / cv**2, scale=cv**2 / 2.0)  # mean 1/2 s at 4 req/s times 0.5
    assert stats.kstest(gaps, theory.cdf).pvalue > 0.01
    wrong = stats.gamma(1 / (1.1 * cv) ** 2, scale=(1.1 * cv) ** 2 / 2.0)
    assert stats.kstest(gaps, wrong.cdf).pvalue < 1e-6
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


@pytest.mark.parametrize(("cv", "low", "high"), [(1.0, 0.9, 1.1), (3.0, 8.0, 10.0), (5.0, 19, 28)])
def test_the_index_of_dispersion_tends_to_cv_squared(cv: float, low: float, high: float) -> None:
    times = profile(config(), 10.0, 1.0).times(unit_process(300_000, cv, rng()))
    counts = np.bincount((times // 60).astype(int))[:-1]
    assert low < counts.var() / counts.mean() < high


def test_nothing_is_rescaled_to_the_last_arrival() -> None:
    """The time of the n-th Poisson arrival varies as theory says: sd √n / rate."""
    last = [unit_process(400, 1.0, np.random.default_rng(seed))[-1] for seed in range(300)]
    assert np.std(last) == pytest.approx(20, rel=0.15)


def test_a_burst_multiplies_the_rate_within_it_only() -> None:
    burst = BurstConfig(factor=5.0, start_s=100.0, duration_s=50.0)
    times = profile(config(burst=burst), 20.0, 1.0).times(unit_process(20_000, 1.0, rng()))
    before, inside, after = np.histogram(times, [0, 100, 150, 400])[0]
    assert before == pytest.approx(2_000, rel=0.06)
    assert inside == pytest.approx(5_000, rel=0.04)
    assert after == pytest.approx(5_000, rel=0.04)
    within = times[(times >= 100) & (times < 150)]
    assert stats.kstest((within - 100) / 50, "uniform").pvalue > 0.01


def test_a_ramp_is_linear_and_then_holds() -> None:
    ramp = RampConfig(start_rate_per_s=0.0, end_rate_per_s=50.0, duration_s=200.0)
    times = profile(config("ramp", ramp=ramp), 0.0, 1.0).times(unit_process(10_000, 1.0, rng()))
    rising = times[times < 200] / 200
    assert len(rising) == pytest.approx(5_000, rel=0.05)
    assert stats.kstest(rising, lambda x: x**2).pvalue > 0.01  # density ∝ rate ∝ t
    assert (times >= 200).sum() / (times[-1] - 200) == pytest.approx(50, rel=0.05)


def test_a_burst_on_a_ramp() -> None:
    ramp = RampConfig(start_rate_per_s=10.0, end_rate_per_s=30.0, duration_s=100.0)
    burst = BurstConfig(factor=2.0, start_s=50.0, duration_s=100.0)
    made = profile(config("ramp", burst, ramp), 0.0, 1.0)
    # ∫ to 50: (10+20)/2·50 = 750; to 100: + 2·(20+30)/2·50 = 2500; to 150: + 2·30·50 = 3000
    unit = np.array([750.0, 3250.0, 6250.0, 6550.0])
    np.testing.assert_allclose(made.times(unit), [50, 100, 150, 160])


@pytest.mark.parametrize("cv", [1.0, 2.0])
def test_stages_have_their_rates_and_nothing_comes_after_the_last(cv: float) -> None:
    asked = stages((1000, 1.0), (500, 0.0), (500, 8.0), (1000, 2.0))
    made = profile(config(stages=asked), 0.0, 2.0)
    times = made.times(staged_units(asked, made, cv, rng()))
    counts = np.histogram(times, [0, 1000, 1500, 2000, 3000])[0]
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], [2000, 8000, 4000], rtol=0.05 * cv)
    assert 2990 < times[-1] <= 3000
    within = times[(times >= 1500) & (times < 2000)]
    if cv == 1.0:
        assert stats.kstest((within - 1500) / 500, "uniform").pvalue > 0.01


def test_a_burst_in_stages_multiplies_the_rate_of_each() -> None:
    asked = stages((100, 1.0), (100, 4.0))
    burst = BurstConfig(factor=2.0, start_s=50.0, duration_s=100.0)
    made = profile(config(burst=burst, stages=asked), 0.0, 1.0)
    # to 50: 50; to 100: + 100; to 150: + 400; to 200: + 200
    np.testing.assert_allclose(made.times(np.array([50.0, 150, 550, 750])), [50, 100, 150, 200])
    assert made.integral(200.0) == pytest.approx(750)


def test_stages_of_one_rate_are_that_rate() -> None:
    asked = stages((30, 5.0), (70, 5.0))
    made = profile(config(stages=asked), 0.0, 1.0)
    staged = made.times(staged_units(asked, made, 1.0, rng()))
    plain = profile(config(), 5.0, 1.0).times(unit_process(len(staged), 1.0, rng()))
    np.testing.assert_allclose(staged, plain)


rates = st.floats(0.01, 100)


@given(
    pieces=st.lists(st.tuples(st.floats(0.01, 50), rates, rates), min_size=1, max_size=5),
    unit=st.lists(st.floats(0.001, 1000), min_size=1, max_size=20).map(sorted),
)
def test_inversion_returns_the_time_whose_integral_is_the_unit_time(
    pieces: list[tuple[float, float, float]], unit: list[float]
) -> None:
    widths, left, right = (np.array(column) for column in zip(*pieces, strict=True))
    knots = np.concatenate([[0.0], np.cumsum(widths)])
    made = RateProfile(knots, np.append(left, 1.0), np.append(right, 1.0))
    times = made.times(np.array(unit))
    assert (np.diff(times) >= -1e-9).all()
    for time, expected in zip(times, unit, strict=True):
        x = np.clip(time - knots[:-1], 0, widths)
        area = (left * x + (right - left) / widths * x**2 / 2).sum() + max(time - knots[-1], 0)
        assert area == pytest.approx(expected, rel=1e-6)


def test_one_seed_gives_one_pattern_at_every_rate() -> None:
    slow = profile(config(), 1.0, 1.0).times(unit_process(100, 2.0, rng()))
    fast = profile(config(), 1.0, 4.0).times(unit_process(200, 2.0, rng()))
    np.testing.assert_allclose(fast[:100], slow / 4)
