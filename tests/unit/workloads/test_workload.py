"""The whole path from a composed config to a schedule, and its labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UsageError
from tests.unit.workloads.conftest import AS_IT_IS, Make

STAGED = (
    "workload.arrivals.rate_per_s=null",
    "workload.arrivals.stages=[{seconds: 60, rate: 1}, {seconds: 60, rate: 4}]",
)


def test_a_dataset_untouched_is_not_synthetic(make: Make) -> None:
    schedule = make("azure_code")
    assert len(schedule) == 8_819
    assert set(schedule.model) == {"default"}
    about = schedule.provenance
    assert not about.synthetic
    assert about.steps == []
    assert about.source == "azure_code"
    assert about.licence == "CC-BY-4.0"
    assert about.source_sha256.startswith("54e9a6d2")


def test_the_first_rows_of_azure_conv_are_those_of_kunserve(make: Make) -> None:
    """KunServe Table 2: mean prompt 1013 and output 247 tokens, median prompt 998."""
    schedule = make("azure_conv", "workload.window.rows=[0,1006]")
    assert len(schedule) == 1_006
    assert schedule.prompt_tokens.mean() == pytest.approx(1013, abs=1)
    assert schedule.output_tokens.mean() == pytest.approx(247, abs=1)
    assert np.median(schedule.prompt_tokens) == pytest.approx(998, abs=5)
    assert schedule.provenance.steps == ["rows [0, 1006)"]


def test_a_window_of_rows_starts_at_zero(make: Make) -> None:
    whole = make("azure_conv")
    part = make("azure_conv", "workload.window.rows=[9342,10100]")
    expected = whole.arrival_s[9342:10100] - whole.arrival_s[9342]
    assert part.arrival_s.tolist() == expected.tolist()
    assert part.prompt_tokens.tolist() == whole.prompt_tokens[9342:10100].tolist()


def test_failed_rows_are_dropped_counted_and_kept_in_the_row_numbers(make: Make) -> None:
    schedule = make("burstgpt", "workload.dataset.file=first400", *AS_IT_IS)
    assert len(schedule) == 383
    assert schedule.provenance.steps[0] == "dropped 17 rows with 0 prompt or output tokens"
    part = make(
        "burstgpt", "workload.dataset.file=first400", "workload.window.rows=[20,43]", *AS_IT_IS
    )
    assert len(part) == 23 - 4  # rows 20, 38, 40 and 41 failed
    models = make(
        "burstgpt", "workload.dataset.file=first400", "workload.models.kind=trace", *AS_IT_IS
    )
    assert Counter(models.model) == {"ChatGPT": 306, "GPT-4": 77}


def test_lengths_from_other_rows_and_other_files(make: Make, data_dir: Path) -> None:
    conv = make("azure_conv")
    rows = make(
        "azure_conv", "workload.window.rows=[9000,9500]", "workload.lengths.rows=[100,5000]"
    )
    assert rows.prompt_tokens.tolist() == conv.prompt_tokens[100:600].tolist()
    assert rows.provenance.synthetic == ["lengths of other requests"]
    path = data_dir / "sharegpt_8k_llama2/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
    other = make("azure_conv", f"workload.lengths.path={path}")
    assert other.arrival_s.tolist() == conv.arrival_s.tolist()
    assert (other.prompt_tokens[0], other.output_tokens[0]) == (74, 918)
    assert path.name in other.provenance.steps[-1]


def test_lengths_are_scaled_then_cut_and_labelled(make: Make) -> None:
    whole = make("azure_code")
    schedule = make(
        "azure_code",
        "workload.lengths.scale_prompt=0.01",
        "workload.lengths.max_prompt_tokens=32",
        "workload.lengths.max_output_tokens=8",
    )
    expected = np.clip(np.rint(whole.prompt_tokens * 0.01), 1, 32)
    assert schedule.prompt_tokens.tolist() == expected.tolist()
    assert schedule.output_tokens.max() == 8
    num_cut = int((whole.output_tokens > 8).sum())
    assert schedule.provenance.steps[-1] == f"outputs cut to 8 tokens ({num_cut} requests)"
    assert not schedule.provenance.synthetic  # reduced, but nothing is drawn


def test_lengths_alone_get_poisson_arrivals_and_say_so(make: Make) -> None:
    schedule = make("sharegpt")
    assert len(schedule) == 1_000
    assert schedule.prompt_tokens.max() <= 6144
    assert schedule.provenance.synthetic == ["arrivals drawn", "lengths drawn"]
    assert "arrivals drawn: poisson at 1 req/s" in schedule.provenance.steps
    assert len(make("lmsys", "workload.num_requests=150000")) == 150_000  # sampled rows never end
    with pytest.raises(
        UsageError, match=r"150000 is more than the 100000 requests of lmsys: ask f"
    ):
        make("lmsys", "workload.num_requests=150000", "workload.lengths.order=file")
    in_order = make("lmsys", "workload.lengths.order=file", "workload.num_requests=3")
    assert in_order.prompt_tokens.tolist() == [107, 396, 18]


def test_asking_for_more_requests_than_there_are_gives_all_and_says_so(make: Make) -> None:
    schedule = make("azure_code", "workload.num_requests=9000")
    assert len(schedule) == 8819
    assert "all 8819 requests there are: fewer than num_requests=9000" in schedule.provenance.steps


def test_stretching_to_a_rate_keeps_the_pattern_of_what_is_replayed(make_bare: Make) -> None:
    plain = make_bare("azure_code", "workload.num_requests=300")
    slow = make_bare("azure_code", "workload.num_requests=300", "workload.scale.to_rate_per_s=0.5")
    assert slow.rate_per_s == pytest.approx(0.5)
    factor = slow.arrival_s[-1] / plain.arrival_s[-1]
    assert np.allclose(slow.arrival_s, plain.arrival_s * factor)
    assert not slow.provenance.synthetic
    assert any("stretched to 0.5 requests/s" in step for step in slow.provenance.steps)


@pytest.mark.parametrize("stretch", ["workload.scale.to_rate_per_s=3", AS_IT_IS[1]])
@pytest.mark.parametrize("rate", [0.5, 1, 2])
def test_num_requests_is_their_number_at_every_rate(
    make_bare: Make, stretch: str, rate: float
) -> None:
    asked = ["workload.num_requests=150", stretch]
    assert len(make_bare("burstgpt", *asked, f"workload.scale.rate={rate:g}")) == 150


@pytest.mark.parametrize(
    ("overrides", "label"),
    [
        (
            ["workload.scale.rate=0.5"],
            "thinned to x0.5: 9759 of 19366 requests left out at random",
        ),
        (
            ["workload.scale={rate: 10, how: stretch}"],
            "stretched: timestamps divided by 10",
        ),
        (["workload.window.seconds=[60,120]"], "seconds [60, 120)"),
        (["workload.num_requests=7"], "first 7 requests"),
    ],
)
def test_reshaping_is_labelled_and_is_not_synthetic(
    make: Make, overrides: list[str], label: str
) -> None:
    about = make("azure_conv", *overrides).provenance
    assert about.steps == [label]
    assert not about.synthetic


@pytest.mark.parametrize(
    ("override", "label"),
    [
        (
            "workload.scale.rate=2",
            "upscaled to x2: 19366 of 38732 requests are copies, up to 1 s later",
        ),
        (
            "workload.arrivals.burst={factor: 3, start_s: 60, duration_s: 9}",
            "burst, rate x3 in seconds [60, 69): 100 of 19466 requests are copies, up to 1 s later",
        ),
    ],
)
def test_requests_that_the_dataset_does_not_have_are_labelled_and_synthetic(
    make: Make, override: str, label: str
) -> None:
    about = make("azure_conv", override).provenance
    assert about.steps == [label]
    assert about.synthetic == ["requests repeated"]


def test_drawn_arrivals_take_the_traces_rate_times_the_scale(make: Make) -> None:
    once = make("azure_conv", "workload.arrivals.kind=poisson")
    thrice = make("azure_conv", "workload.arrivals.kind=poisson", "workload.scale.rate=3")
    assert once.rate_per_s == pytest.approx(5.53, rel=0.03)
    np.testing.assert_allclose(thrice.arrival_s, once.arrival_s / 3)


def test_stages_settle_how_many_requests_there_are(make: Make) -> None:
    schedule = make("sharegpt", *STAGED)
    counts = np.histogram(schedule.arrival_s, [0, 60, 120])[0]
    assert counts.sum() == len(schedule)
    assert counts[0] == pytest.approx(60, abs=4 * 60**0.5)
    assert counts[1] == pytest.approx(240, abs=4 * 240**0.5)
    assert "poisson, 60 s at 1 req/s, 60 s at 4 req/s" in schedule.provenance.steps[-2]
    assert "arrivals drawn" in schedule.provenance.synthetic
    again = make("sharegpt", *STAGED, "workload.scale.rate=2")
    assert len(again) > 1.7 * len(schedule)


def test_drawn_arrivals_have_one_rate(make_bare: Make) -> None:
    poisson = ("azure_conv", "workload.num_requests=2000", "workload.arrivals.kind=poisson")
    asked = make_bare(*poisson, "workload.scale.to_rate_per_s=40")
    assert asked.rate_per_s == pytest.approx(40, rel=0.1)
    with pytest.raises(UsageError, match=r"rate_per_s=4 and .*to_rate_per_s=40 are two rates"):
        make_bare(*poisson, "workload.arrivals.rate_per_s=4", "workload.scale.to_rate_per_s=40")


def test_mixes_have_the_shares_asked_for(make: Make) -> None:
    zipf = make("azure_conv", "workload.models={kind: zipf, num_models: 12, alpha: 1.0}")
    assert zipf.provenance.synthetic == ["models drawn"]  # the requests are the dataset's
    counts = Counter(zipf.model)
    harmonic = sum(1 / k for k in range(1, 13))
    for k in range(1, 13):
        expected = len(zipf) / k / harmonic
        assert abs(counts[f"model-{k - 1:02d}"] - expected) < 4 * expected**0.5
    even = Counter(make("azure_conv", "workload.models={kind: uniform, num_models: 4}").model)
    assert sorted(even) == ["model-0", "model-1", "model-2", "model-3"]
    assert max(even.values()) / min(even.values()) < 1.1
    own = make("lmsys_arena")
    assert len(set(own.model)) == 27
    assert not own.provenance.synthetic
    one = make("lmsys_arena", "workload.models.kind=single")
    assert one.provenance.steps == ["one model in place of the trace's 27"]


EVERYTHING = (
    "workload.window.seconds=[0,600]",
    "workload.arrivals={kind: gamma, cv: 3, burst: {factor: 4, start_s: 60, duration_s: 30}}",
    "workload.models={kind: zipf, num_models: 5, alpha: 1}",
    "workload.lengths.order=sample",
    "workload.num_requests=2000",
)


def test_the_same_seed_gives_the_same_bytes(make_bare: Make, tmp_path: Path) -> None:
    files = []
    for name in ("a.parquet", "b.parquet"):
        make_bare("azure_code", *EVERYTHING, "seed=7").save(tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]
    assert (
        make_bare("azure_code", *EVERYTHING, "seed=8").sha256()
        != make_bare("azure_code", *EVERYTHING, "seed=7").sha256()
    )


def test_changing_one_draw_leaves_the_others(make_bare: Make) -> None:
    base = make_bare("azure_code", *EVERYTHING)
    mixed = make_bare("azure_code", *EVERYTHING, "workload.models.num_models=50")
    assert mixed.arrival_s.tolist() == base.arrival_s.tolist()
    assert mixed.prompt_tokens.tolist() == base.prompt_tokens.tolist()
    assert mixed.model != base.model
    calm = make_bare("azure_code", *EVERYTHING, "workload.arrivals.cv=1")
    assert calm.arrival_s.tolist() != base.arrival_s.tolist()
    assert calm.prompt_tokens.tolist() == base.prompt_tokens.tolist()
    assert calm.model == base.model
    fewer = make_bare("azure_code", *EVERYTHING, "workload.num_requests=500")
    assert fewer.arrival_s.tolist() == base.arrival_s[:500].tolist()
    assert fewer.prompt_tokens.tolist() == base.prompt_tokens[:500].tolist()
    assert fewer.model == base.model[:500]


def test_a_file_that_is_not_the_published_one_says_so(make_bare: Make, tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4,1\n")
    about = make_bare("azure_code", f"workload.path={path}").provenance
    assert about.steps == ["not the published file (sha256 differs)"]
    assert about.source == "other"
