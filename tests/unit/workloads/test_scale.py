"""Scaling: counts, order and span for any trace; the pattern over time for the real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.schedule import Provenance, Schedule
from tests.unit.workloads.conftest import Make
from workloads.arrivals import BurstConfig
from workloads.scale import ScaleConfig, scaled, with_burst
from workloads.trace import Trace


def trace(arrival_s: list[float]) -> Trace:
    n = len(arrival_s)
    return Trace(
        arrival_s=np.array(sorted(arrival_s)),
        model=np.array([f"m{i}" for i in range(n)], dtype=object),
        prompt_tokens=np.arange(1, n + 1),
        output_tokens=np.arange(1, n + 1) * 2,
        provenance=Provenance("test", "test", False, "", ""),
    )


traces = st.lists(st.floats(0, 1000), min_size=1, max_size=60).map(trace)


def preserve(rate: float) -> ScaleConfig:
    return ScaleConfig(to_rate_per_s=None, rate=rate, how="preserve", max_jitter_s=1.0)


@given(before=traces, rate=st.floats(0.05, 6), seed=st.integers(0, 1000))
def test_preserve_keeps_order_rows_and_span(before: Trace, rate: float, seed: int) -> None:
    after = scaled(before, preserve(rate), seed)
    old, new = before.arrivals(), after.arrivals()
    assert (np.diff(new) >= 0).all()
    copies = np.bincount(after.prompt_tokens, minlength=len(before) + 1)[1:]
    assert copies.min() >= np.floor(rate)
    assert copies.max() <= np.ceil(rate)
    assert (after.output_tokens == after.prompt_tokens * 2).all()  # rows stay whole
    original = old[after.prompt_tokens - 1]
    assert (new >= original).all()
    assert (new - original <= 1.0).all()
    if rate >= 1:
        assert new[0] == old[0]
        assert set(old) <= set(new)
    assert len(new) == 0 or new[-1] <= old[-1] + 1e-9  # never beyond the trace's end
    assert not after.provenance.synthetic


@given(before=traces, rate=st.floats(0.05, 20))
def test_stretch_is_exact(before: Trace, rate: float) -> None:
    after = scaled(
        before, ScaleConfig(to_rate_per_s=None, rate=rate, how="stretch", max_jitter_s=1.0), 0
    )
    assert after.arrivals().tolist() == (before.arrivals() / rate).tolist()
    assert after.prompt_tokens.tolist() == before.prompt_tokens.tolist()


@given(before=traces, seed=st.integers(0, 100))
def test_a_lower_rate_keeps_a_subset_of_what_a_higher_one_keeps(before: Trace, seed: int) -> None:
    low, high = (scaled(before, preserve(rate), seed) for rate in (0.3, 0.7))
    assert set(low.prompt_tokens.tolist()) <= set(high.prompt_tokens.tolist())


def per_minute(schedule: Schedule) -> np.ndarray:
    return np.bincount((schedule.arrival_s // 60).astype(int), minlength=58)[:57]


@pytest.mark.parametrize("rate", [0.25, 0.5, 1.5, 2.0, 4.0])
def test_the_pattern_per_minute_stays(make: Make, rate: float) -> None:
    before = per_minute(make("azure_code"))
    after = per_minute(make("azure_code", f"workload.scale.rate={rate}"))
    assert after.sum() / before.sum() == pytest.approx(rate, rel=0.02)
    assert np.corrcoef(before, after)[0, 1] > 0.98
    # bursts keep their height above the mean: the cv of the counts is the pattern's
    assert after.std() / after.mean() == pytest.approx(before.std() / before.mean(), rel=0.05)
    assert (after[before == 0] == 0).all() or rate > 1
    assert after[before == 0].max(initial=0) <= 1  # silences stay, but for a copy's jitter


def test_copies_do_not_arrive_in_batches(make: Make) -> None:
    once = make("azure_conv")
    twice = make("azure_conv", "workload.scale.rate=2")
    assert len(twice) == 2 * len(once)
    ties = (np.diff(once.arrival_s) == 0).sum()
    assert (np.diff(twice.arrival_s) == 0).sum() <= 3 * ties + 2


@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_a_burst_on_a_trace_changes_only_its_window(factor: float) -> None:
    before = trace(np.linspace(0, 1000, 5001).tolist())
    burst = BurstConfig(factor=factor, start_s=200.0, duration_s=300.0)
    after = with_burst(before, burst, 1.0, 0)
    old = np.histogram(before.arrivals(), [0, 200, 500, 1000])[0]
    new = np.histogram(after.arrivals(), [0, 200, 500, 1000])[0]
    assert new[1] == pytest.approx(factor * old[1], rel=0.06)
    assert (new[[0, 2]] == old[[0, 2]]).all()
    assert after.provenance.synthetic
