"""Synthetic traces: their constants come from the data, and they look like the data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.errors import UsageError
from harness.schedule import Provenance, Schedule
from tests.unit.workloads import fit
from tests.unit.workloads.conftest import Make
from workloads import compose, formats
from workloads.describe import measure
from workloads.synthetic import LEVELS, SyntheticConfig, lengths, mean_of
from workloads.trace import Floats, Trace, usable

REAL = {
    "azure_code": "azure_llm_2023/AzureLLMInferenceTrace_code.csv",
    "azure_conv": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
    "lmsys_arena": "lmsys_arena/real_trace.csv",
    "sharegpt": "sharegpt_nanoflow/sharegpt.csv",
    "lmsys": "lmsys_nanoflow/lmsys.csv",
    "arxiv": "arxiv_summarization_vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
    "burstgpt": "burstgpt/BurstGPT_1_first400.csv",
}
TIMED = ("azure_code", "azure_conv", "mooncake", "lmsys_arena")


@cache
def real(data_dir: Path, path: str) -> Trace:
    return usable(formats.read(data_dir / path, Provenance("", "", [], "", "")))


@cache
def constants(name: str) -> SyntheticConfig:
    return compose.workload(compose.composed(name, ["data.dir=null"]))._config.synthetic


@pytest.mark.parametrize("name", REAL)
def test_length_quantiles_are_the_datas(data_dir: Path, name: str) -> None:
    config, trace = constants(name), real(data_dir, REAL[name])
    assert config.prompt_quantiles == pytest.approx(fit.quantiles(trace.prompt_tokens), abs=0.1)
    assert config.output_quantiles == pytest.approx(fit.quantiles(trace.output_tokens), abs=0.1)


def test_aegaeon_length_quantiles_are_the_pooled_files(data_dir: Path) -> None:
    files = sorted((data_dir / "aegaeon_workloads").glob("*.csv"))
    traces = [real(data_dir, f"aegaeon_workloads/{path.name}") for path in files]
    config = constants("aegaeon")
    for side in ("prompt", "output"):
        pooled = np.concatenate([getattr(trace, f"{side}_tokens") for trace in traces])
        assert getattr(config, f"{side}_quantiles") == pytest.approx(fit.quantiles(pooled), abs=0.1)


@pytest.mark.parametrize("name", TIMED)
def test_rates_cv_and_popularity_are_the_datas(data_dir: Path, name: str) -> None:
    config, trace = constants(name), real(data_dir, REAL[name])
    assert config.rates_per_model_per_s is not None
    arrival_s = trace.arrivals()
    rates = fit.slot_rates(arrival_s, config.slot_s) / config.num_models
    assert config.rates_per_model_per_s == pytest.approx(rates, rel=0.002)
    if config.busy_shares is not None:
        shares = fit.busy_shares(arrival_s, config.slot_s)
        assert config.busy_shares == pytest.approx(shares, abs=1e-4)
    if trace.model is not None:
        assert config.cv == pytest.approx(fit.cv(arrival_s, config.slot_s, 10), rel=0.01)
        counts = pd.Series(trace.model).value_counts().to_numpy()
        assert config.num_models == len(counts)
        assert config.alpha == pytest.approx(fit.zipf_alpha(counts), abs=0.011)


def test_burstgpt_constants_are_the_aggregates(data_dir: Path) -> None:
    config, folder = constants("burstgpt"), data_dir / "burstgpt"
    hourly = pd.read_csv(folder / "burstgpt1_hourly_mean.csv").mean_requests_per_hour.to_numpy()
    daily = pd.read_csv(folder / "burstgpt1_daily_days0-60.csv")
    not_failed = 1_404_294  # published; of all requests:
    share = not_failed / daily.requests.sum()
    assert config.rates_per_model_per_s == pytest.approx(hourly / 3600 * share, abs=1e-4)
    assert config.num_requests_per_model == round(not_failed / len(daily))
    minutes = pd.read_csv(folder / "burstgpt1_minute_tokens_days0-6.csv")
    tokens = np.zeros(7 * 1440)
    tokens[minutes.minute] = minutes.tokens_per_s * 60
    week = daily[:7]
    rows = real(data_dir, REAL["burstgpt"])
    totals = rows.prompt_tokens + rows.output_tokens
    cv = fit.cv_from_tokens(
        tokens.reshape(7, 1440),
        week.total_tokens.sum() / week.requests.sum(),
        totals.std() / totals.mean(),
    )
    assert config.cv == pytest.approx(cv, abs=0.01)
    means = (config.prompt_mean_tokens, config.output_mean_tokens)
    assert means == (621, 126)  # published; and they agree with the daily totals:
    assert sum(means) == pytest.approx(daily.total_tokens.sum() / not_failed, abs=1)


@pytest.mark.parametrize("name", sorted(set(REAL) - {"burstgpt"}))
def test_synthetic_trace_lengths_are_close_to_the_real(
    make_bare: Make, data_dir: Path, name: str
) -> None:
    """Mean within 15 %, median and 90th percentile within 10 % (or two tokens)."""
    uncut = ("workload.lengths.max_prompt_tokens=null", "workload.num_requests=20000")
    synthetic, trace = make_bare(name, *uncut), real(data_dir, REAL[name])
    for side in ("prompt_tokens", "output_tokens"):
        drawn, data = getattr(synthetic, side), getattr(trace, side)
        assert drawn.mean() == pytest.approx(data.mean(), rel=0.15)
        for percent in (50, 90):
            expected = np.percentile(data, percent)
            assert np.percentile(drawn, percent) == pytest.approx(expected, rel=0.10, abs=2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("name", "per_second", "per_minute"),
    [("azure_code", 0.35, 0.10), ("azure_conv", 0.15, 0.20), ("mooncake", 0.05, 0.20)],
)
def test_synthetic_trace_arrivals_resemble_the_real(
    make: Make, make_bare: Make, name: str, per_second: float, per_minute: float, seed: int
) -> None:
    """As many requests as the file has, at each seed: rate within 3 %, median gap within 10 %, gaps
    of 0 and seconds with any arrival within 0.02 of all, dispersions within what is given."""
    drawn, data = make_bare(name, f"seed={seed}"), make(name)
    assert len(drawn) == len(data)
    assert drawn.rate_per_s == pytest.approx(data.rate_per_s, rel=0.03)
    gaps_s, expected_s = np.diff(drawn.arrival_s), np.diff(data.arrival_s)
    assert np.median(gaps_s) == pytest.approx(np.median(expected_s), rel=0.10)
    assert (gaps_s < 1e-6).mean() == pytest.approx((expected_s < 1e-6).mean(), abs=0.02)
    seconds, expected = counts(drawn, 1), counts(data, 1)
    assert (seconds > 0).mean() == pytest.approx((expected > 0).mean(), abs=0.02)
    assert dispersion(seconds) == pytest.approx(dispersion(expected), rel=per_second)
    per_60_s = dispersion(counts(drawn, 60)), dispersion(counts(data, 60))
    assert per_60_s[0] == pytest.approx(per_60_s[1], rel=per_minute)


def counts(schedule: Schedule, bin_s: int) -> Floats:
    """Requests in each bin; the last, which the schedule does not fill, is left out."""
    binned = np.bincount((schedule.arrival_s // bin_s).astype(int))
    return binned[:-1].astype(float)


def dispersion(per_bin: Floats) -> float:
    return float(per_bin.var() / per_bin.mean())


def test_a_long_synthetic_trace_of_the_arena_is_as_bursty_as_the_real(
    make: Make, make_bare: Make
) -> None:
    """Rate within 10 %; index of dispersion per minute within a factor of two. A long trace: one
    of its 1,500 rows is itself off by cv / √n in its rate, as any draw of it."""
    drawn, data = make_bare("lmsys_arena", "workload.num_requests=200000"), make("lmsys_arena")
    assert drawn.rate_per_s == pytest.approx(data.rate_per_s, rel=0.10)
    assert 0.5 < measure(drawn).dispersion / measure(data).dispersion < 2
    assert len(set(drawn.model)) == len(set(data.model))


def test_burstgpt_synthetic_trace_has_the_published_means_and_day(make_bare: Make) -> None:
    synthetic = make_bare(
        "burstgpt", "workload.num_requests=null", "workload.scale.to_rate_per_s=null"
    )
    assert synthetic.prompt_tokens.mean() == pytest.approx(621, rel=0.03)
    assert synthetic.output_tokens.mean() == pytest.approx(126, rel=0.03)
    assert synthetic.duration_s == pytest.approx(86_400, rel=0.05)
    hour = np.bincount((synthetic.arrival_s // 3600).astype(int))
    assert hour[14] > 5 * hour[7]


@pytest.mark.parametrize("name", [*REAL, "aegaeon"])
def test_a_synthetic_trace_says_that_it_is_one(
    make_bare: Make, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    beyond = {
        "aegaeon": "workload.dataset.parameters.num_models=81",
        "burstgpt": "workload.num_requests=384",
    }
    about = make_bare(name, *([beyond[name]] if name in beyond else [])).provenance
    assert "lengths from published statistics" in about.synthetic
    assert "arrivals drawn" in about.synthetic
    assert ("models drawn" in about.synthetic) == (name in ("aegaeon", "lmsys_arena"))
    assert "generated by its authors" not in about.synthetic
    assert about.source == f"{name} synthetic"
    assert "synthetic trace" in about.origin
    assert about.source_sha256 == ""
    assert about.steps[0] == f"synthetic trace of {name}"
    assert "LENGTHS FROM PUBLISHED STATISTICS" in caplog.text


def test_a_longer_synthetic_trace_begins_like_a_shorter_one(make_bare: Make) -> None:
    short = make_bare("lmsys_arena", "workload.num_requests=100")
    long = make_bare("lmsys_arena", "workload.num_requests=3000")
    assert long.arrival_s[:100].tolist() == short.arrival_s.tolist()
    assert long.prompt_tokens[:100].tolist() == short.prompt_tokens.tolist()
    assert long.model[:100] == short.model


def test_the_synthetic_trace_of_aegaeon_follows_its_parameters(make_bare: Make) -> None:
    synthetic = make_bare(
        "aegaeon",
        "workload.dataset.parameters.num_models=41",
        "workload.dataset.parameters.rate_per_s=0.2",
        "workload.num_requests=4000",
    )
    assert synthetic.rate_per_s == pytest.approx(41 * 0.2, rel=0.05)
    assert len(set(synthetic.model)) == 41


def test_the_mean_of_the_quantile_form() -> None:
    uniform = (np.arange(200_000) + 0.5) / 200_000
    quantiles = [3.0, 20.0, 30.0, 90.0, 400.0, 900.0, 1500.0, 1500.0, 2000.0, 2100.0]
    assert len(quantiles) == len(LEVELS)
    assert lengths(uniform, quantiles, None).mean() == pytest.approx(mean_of(quantiles), rel=1e-3)
    assert lengths(uniform, quantiles, 100.0).mean() == pytest.approx(100, rel=1e-3)


def test_constants_that_cannot_be(make_bare: Make) -> None:
    with pytest.raises(UsageError, match="prompt_quantiles must be 10 lengths"):
        make_bare("azure_code", "workload.synthetic.prompt_quantiles=[5,1]")
    with pytest.raises(UsageError, match=r"workload\.synthetic\.cv=0 must be above 0"):
        make_bare("azure_code", "workload.synthetic.cv=0")
    with pytest.raises(UsageError, match="busy_shares must be a share for each rate"):
        make_bare("azure_code", "workload.synthetic.busy_shares=[0.5]")
    with pytest.raises(UsageError, match=r"workload\.synthetic\.tick_s=0 must be above 0"):
        make_bare("mooncake", "workload.synthetic.tick_s=0")
