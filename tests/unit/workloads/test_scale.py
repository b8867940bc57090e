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
        provenance=Provenance("test", "test", [], "", ""),
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
    assert (new - original <= 1.0 + 1e-9).all()
    if rate >= 1:
        assert new[0] == old[0]
        assert set(old) <= set(new)
    # the dataset's requests alone, or else said to be synthetic
    repeated = ["requests repeated"] if copies.max() > 1 else []
    assert after.provenance.synthetic == repeated


def test_copies_of_tied_requests_spread_until_the_next_other_time() -> None:
    before = trace([0.0, 0.0, 0.0, 4.0, 4.0, 6.0, 7.0, 7.0])
    config = ScaleConfig(to_rate_per_s=None, rate=100, how="preserve", max_jitter_s=3.0)
    after = scaled(before, config, 0)
    times = after.arrivals()
    own, counts = np.unique(before.arrivals(), return_counts=True)
    for time_s, count in zip(own, counts, strict=True):
        assert (times == time_s).sum() == count  # the originals; no copy joins them
    counts = np.histogram(times, [0, 3, 4, 6, 7, 9])[0]
    assert counts.tolist() == [300, 0, 200, 100, 200]
    # rows of the last time have the median of the gaps 4, 2 and 1
    assert 8.9 < times[-1] < 9


@pytest.mark.parametrize("arrival_s", [[5.0], [5.0, 5.0]])
def test_copies_of_requests_of_one_time_spread_over_the_jitter(arrival_s: list[float]) -> None:
    times = scaled(trace(arrival_s), preserve(50), 0).arrivals()
    assert (times == 5).sum() == len(arrival_s)
    assert 5.9 < times.max() < 6


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


BURSTGPT = (
    "burstgpt",
    "workload.dataset.file=dense_120",  # about 30 requests in each whole second
    "workload.num_requests=null",
    "workload.scale.to_rate_per_s=null",
)


@pytest.mark.parametrize("workload", [("azure_conv",), BURSTGPT])
def test_copies_do_not_arrive_in_batches(make: Make, workload: tuple[str, ...]) -> None:
    once = make(*workload)
    twice = make(*workload, "workload.scale.rate=2")
    assert len(twice) == 2 * len(once)
    ties = (np.diff(once.arrival_s) == 0).sum()
    assert (np.diff(twice.arrival_s) == 0).sum() == ties  # the dataset's own
    assert twice.provenance.synthetic == ["requests repeated"]


@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_a_burst_on_a_trace_changes_only_its_window(factor: float) -> None:
    before = trace(np.linspace(0, 1000, 5001).tolist())
    burst = BurstConfig(factor=factor, start_s=200.0, duration_s=300.0)
    after = with_burst(before, burst, 1.0, 0)
    old = np.histogram(before.arrivals(), [0, 200, 500, 1000])[0]
    new = np.histogram(after.arrivals(), [0, 200, 500, 1000])[0]
    assert new[1] == pytest.approx(factor * old[1], rel=0.06)
    assert (new[[0, 2]] == old[[0, 2]]).all()
    added, dropped = max(new[1] - old[1], 0), max(old[1] - new[1], 0)
    assert after.provenance.synthetic == (["requests repeated"] if added > 0 else [])
    (step,) = after.provenance.steps
    assert step.startswith(f"burst, rate x{factor:g} in seconds [200, 500): ")
    said = f"{added} of {len(after)} requests are copies, up to 1 s later"
    assert step.endswith(
        said if added else f"{dropped} of {len(before)} requests left out at random"
    )
