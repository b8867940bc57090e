"""The profiler's searches over curves that are known, and the file that it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from systems.aqua.profiler.plateau import BatchSample, Plateau, sweep
from systems.aqua.profiler.profile import (
    Burst,
    MemoryProfile,
    context_bytes,
    generator_profile,
    llm_profile,
    read_profile,
    swap_demand,
    write_profile,
)
from systems.aqua.profiler.stable_rate import RateConfig, RateSample, StableRate, stable_rate
from tests.running import composed, model_spec
from tests.unit.aqua.producers import PRODUCERS

GB = 10**9
RATES = RateConfig(
    ttft_s=1.0, tbt_p99_s=0.1, min_rate_per_s=1.0, max_rate_per_s=10.0,
    binary_step_per_s=1.0, linear_step_per_s=0.5,
)  # fmt: skip


def knee(last: float) -> Callable[[float], RateSample]:
    """Meets the SLA up to `last` requests/s."""
    return lambda rate: RateSample(rate, 0.5 if rate <= last else 5.0, 0.05, int(40 * GB - rate))


def test_the_sweep_ends_where_throughput_saturates() -> None:
    def measure(batch: int) -> BatchSample:
        return BatchSample(batch, batch / (batch + 4), 80 - batch)

    found = sweep(measure, plateau_gain=0.1)
    # 2(b + 4) / (2b + 4) is at most 1.1 from b = 18 on: 32 is the first batch not worth doubling.
    assert found.peak == BatchSample(32, 32 / 36, 48)
    assert [sample.batch for sample in found.samples] == [1, 2, 4, 8, 16, 32, 64]


def test_the_sweep_ends_where_memory_does() -> None:
    found = sweep(lambda b: BatchSample(b, b, 10 - b) if b < 10 else None, plateau_gain=0.1)
    assert found.peak.batch == 8
    with pytest.raises(ValueError, match="a batch of one does not fit"):
        sweep(lambda b: None, plateau_gain=0.1)


@pytest.mark.parametrize("producer", PRODUCERS, ids=lambda producer: producer.name)
def test_the_published_image_and_audio_models_are_producers(producer) -> None:  # type: ignore[no-untyped-def]
    """Through conf/producer's two points of each, a line and a curve that are ours."""

    def measure(batch: int) -> BatchSample | None:
        free = int(producer.device_memory_bytes - producer.memory_bytes(batch))
        return BatchSample(batch, producer.throughput_share(batch), free) if free >= 0 else None

    found = sweep(measure, composed("+system=aqua").system.profiler.plateau_gain)
    # The published batch, or the power of two below it.
    assert producer.peak_batch / 2 < found.peak.batch <= producer.peak_batch
    profile = generator_profile(producer.name, "a100x1", found, 10 * GB)
    assert profile.role == "producer"
    assert profile.memory_balance >= producer.free_bytes_at_peak


def test_a_producer_has_more_than_the_threshold_free() -> None:
    def profile(free: int) -> MemoryProfile:
        peak = BatchSample(8, 1.0, free)
        return generator_profile("m", "h", Plateau(peak, (peak,)), 10 * GB)

    assert profile(10 * GB + 1).memory_balance == 10 * GB + 1
    assert profile(10 * GB).memory_balance == 0  # a producer with nothing to offer


@given(st.integers(2, 20).map(lambda n: n / 2))
def test_the_stable_rate_is_found_to_half_a_request(last: float) -> None:
    found = stable_rate(knee(last), RATES)
    assert found.best is not None
    assert found.best.rate_per_s == last
    rates = [sample.rate_per_s for sample in found.samples]
    assert len(set(rates)) == len(rates)  # none is measured twice
    assert len(rates) <= 7  # 19 are in the range


def test_rates_below_the_range_are_tried_before_giving_up() -> None:
    assert stable_rate(knee(0.5), RATES).best == knee(0.5)(0.5)
    assert stable_rate(knee(0.4), RATES).best is None


def test_either_part_of_the_sla_ends_it() -> None:
    def slow(rate: float) -> RateSample:
        return RateSample(rate, 0.5, 0.05 if rate <= 2.5 else 0.1, 0)

    found = stable_rate(slow, RATES)
    assert found.best is not None
    assert found.best.rate_per_s == 2.5  # "below" 100 ms


def test_the_linear_search_goes_on_over_a_local_maximum() -> None:
    """Noise: 3 fails in the binary search, so it ends at 2; the steps above 2 meet the SLA."""

    def measure(rate: float) -> RateSample:
        return RateSample(rate, 2.0 if rate >= 3 or rate == 1.5 else 0.5, 0.05, 0)

    found = stable_rate(measure, RATES)
    assert found.best is not None
    assert found.best.rate_per_s == 2.5


def test_an_llm_with_memory_to_spare_is_a_producer_and_its_bursts_are_not_measured() -> None:
    def never() -> tuple[list[Burst], int]:
        raise AssertionError

    found = llm_profile("m", "h", 2, stable_rate(knee(2.5), RATES), 10 * GB, never)
    assert (found.role, found.stable_rate_per_s, found.shards) == ("producer", 2.5, 2)
    assert found.memory_balance == found.free_bytes == int(40 * GB - 2.5)


def test_an_llm_without_is_a_consumer_of_what_its_bursts_page_out() -> None:
    found = stable_rate(lambda r: replace(knee(2.0)(r), free_bytes=3 * GB), RATES)
    rates: list[float] = []

    def paged_out(rate: float) -> int:
        rates.append(rate)
        return int(rate * GB)

    def swap() -> tuple[list[Burst], int]:
        return swap_demand(paged_out, 2.0, [2.0, 3.0, 5.0], planned=3.0)

    profile = llm_profile("m", "h", 1, found, 10 * GB, swap)
    assert rates == [4.0, 6.0, 10.0]
    assert profile.role == "consumer"
    assert profile.memory_balance == -6 * GB
    assert profile.bursts[2] == Burst(factor=5.0, swap_bytes=10 * GB)
    nothing = llm_profile("m", "h", 1, found, 10 * GB, lambda: ([], 0))
    assert (nothing.role, nothing.memory_balance) == ("producer", 0)
    with pytest.raises(UsageError, match=r"planned_burst=4 is not profiled; valid: 2.0, 3.0"):
        swap_demand(paged_out, 2.0, [2.0, 3.0], planned=4.0)


def test_an_llm_that_never_meets_its_sla_is_told() -> None:
    found = stable_rate(knee(0.1), RATES)
    assert isinstance(found, StableRate)
    with pytest.raises(UsageError, match=r"m on h meets its SLA at none of .* from 0\.5 to"):
        llm_profile("m", "h", 1, found, 1, lambda: ([], 0))


def test_swap_space_of_a_long_prompt_is_computed() -> None:
    opt = model_spec("opt-30b")
    found = context_bytes(1, 8192, opt.kv_bytes_per_token)
    assert round(found / GB, 1) == 11.3  # section 9.3 says 10 GB


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    profile = MemoryProfile(
        model="yi-34b", hardware="a100x1", shards=1, role="consumer", memory_balance=-6 * GB,
        free_bytes=GB, stable_rate_per_s=1.5, bursts=[Burst(factor=2.0, swap_bytes=6 * GB)],
    )  # fmt: skip
    write_profile(tmp_path / "yi.json", profile)
    assert read_profile(tmp_path / "yi.json") == profile
    assert [path.name for path in tmp_path.iterdir()] == ["yi.json"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"role": "both"}, "role=both is unknown; valid: producer, consumer"),
        ({"role": "producer"}, "memory_balance=-5 of a producer"),
        ({"shards": 0}, "shards=0 must be at least 1"),
        ({"memory_balance": "much"}, "memory_balance"),
        ({"stable_rate_per_s": -1.0}, "stable_rate_per_s=-1.0 must be finite and above 0"),
        ({"colour": 1}, "unknown key 'colour'; valid keys: model, hardware"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    path = tmp_path / "p.json"
    right = {
        "model": "m", "hardware": "h", "shards": 1, "role": "consumer", "memory_balance": -5,
        "free_bytes": 1,
    }  # fmt: skip
    path.write_text(json.dumps(right))
    assert read_profile(path).memory_balance == -5
    path.write_text(json.dumps(right | change))
    with pytest.raises(UsageError, match=reason):
        read_profile(path)


def test_a_file_that_is_not_there_or_half_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "half.json").write_text('{"model": ')
    with pytest.raises(UsageError, match="is damaged"):
        read_profile(tmp_path / "half.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UsageError, match="holds no JSON object"):
        read_profile(tmp_path / "list.json")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"min_rate_per_s": 0.0}, "min_rate_per_s=0 must be above 0"),
        ({"max_rate_per_s": 0.5}, "at most max_rate_per_s=0.5"),
        ({"linear_step_per_s": 0.0}, "linear_step_per_s=0 must be above 0"),
    ],
)
def test_a_range_that_cannot_be_is_refused(wrong: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(RATES, **wrong)
