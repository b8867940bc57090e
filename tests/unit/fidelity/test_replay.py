"""`python -m harness.fidelity replay`, as it is typed, and what a load is played as."""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.calibrate import zoo
from harness.configuration.config import build, settings
from harness.cost.served import ServedCost
from harness.errors import UsageError
from harness.fidelity.__main__ import main
from harness.fidelity.play import Played, play
from harness.fidelity.replay import Load, arrivals_s, engine_config, read, simulated
from harness.request import Request
from harness.sim.engine import SimEngine

ROW = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100", "num_gpus": 1, "tp": 1,
    "max_num_seqs": 8, "max_num_batched_tokens": 2048, "chunked_prefill": "on",
    "prefix_caching": "off", "distinct_prompts": "", "rate_per_s": 2.0, "duration_s": 20,
    "prompt_tokens": 100, "output_tokens": 8, "max_outstanding": "",
}  # fmt: skip
LOAD = Load(
    model="llama3.1-8b", gpu="h100_sxm", num_gpus=1, tp=1, max_num_seqs=8,
    max_num_batched_tokens=2048, chunked_prefill=True, prefix_caching=False, distinct_prompts=None,
    rate_per_s=2.0, duration_s=20.0, prompt_tokens=100, output_tokens=8, max_outstanding=inf,
)  # fmt: skip
CONFIG = engine_config("vllm_v1")


def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict], *words: str) -> int:
    pd.DataFrame(rows).to_csv(tmp_path / "points.csv", index=False)
    paths = ["--points", str(tmp_path / "points.csv"), "--out", str(tmp_path / "out.csv")]
    monkeypatch.setattr(sys, "argv", ["harness.fidelity", "replay", *paths, *words])
    return main()


def test_a_table_is_written_with_what_was_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_big = ROW | {"model": "llama3.1-70b", "note": "kept"}
    assert typed(tmp_path, monkeypatch, [ROW, too_big], "profile=vllm_v1") == 0
    out = pd.read_csv(tmp_path / "out.csv", keep_default_na=False, na_values=[""])
    assert out.model[0] == ROW["model"]
    assert out.note[1] == "kept"
    found = out.loc[0, ["ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p90_s", "e2e_p99_s"]]
    assert (found > 0).all()
    assert out.e2e_mean_s[0] == pytest.approx(out.ttft_mean_s[0] + 7 * out.tpot_mean_s[0])
    assert pd.isna(out.reason[0])
    assert "leaves no memory for KV" in out.reason[1]
    assert pd.isna(out.e2e_mean_s[1])


@pytest.mark.parametrize(
    ("wrong", "words", "said"),
    [
        ({"gpu": "TPU"}, (), "row 1: device 'TPU' is unknown; valid: a10"),
        ({"model": "gpt-9"}, (), "row 1: model 'gpt-9' is unknown; valid: baichuan"),
        ({"rate_per_s": -1}, (), "rate_per_s=-1 is not a number above 0"),
        ({"prompt_tokens": 1.5}, (), "prompt_tokens=1.5 is not a whole number"),
        ({"chunked_prefill": "maybe"}, (), "chunked_prefill=maybe is unknown; valid: on, off"),
        ({}, ("profile=v9",), "engine.profile=v9 is unknown; valid: eager_2024, vllm_v1"),
        ({}, ("speed=2",), "unknown override speed=2; valid: profile=NAME"),
    ],
)
def test_what_cannot_be_replayed_is_said_and_nothing_written(
    wrong: dict[str, object],
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed(tmp_path, monkeypatch, [ROW | wrong], *words) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    pd.DataFrame([ROW]).drop(columns="tp").to_csv(tmp_path / "points.csv", index=False)
    with pytest.raises(UsageError, match="lacks tp; needed: model, gpu"):
        read(tmp_path / "points.csv")


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    pd.DataFrame([ROW]).head(0).to_csv(tmp_path / "points.csv", index=False)
    with pytest.raises(UsageError, match="has no rows"):
        read(tmp_path / "points.csv")


def test_arrivals_fill_the_stage() -> None:
    times = arrivals_s(1000, 50.0)
    assert times[-1] == pytest.approx(50.0)
    assert np.diff(times).std() == pytest.approx(0.05, rel=0.1)  # exponential: as wide as its mean


def test_a_lone_request_takes_its_iterations() -> None:
    found = simulated(replace(LOAD, rate_per_s=0.05), CONFIG)
    assert CONFIG.costs is not None
    cost = ServedCost(zoo.model("llama3.1-8b"), zoo.device("h100_sxm"), CONFIG.costs)
    prefill_s = cost.mixed_step([(0, 100)], 0, 0)
    assert found["ttft_mean_s"] == pytest.approx(prefill_s + CONFIG.costs.path_s)
    steps_s = sum(cost.decode_step(1, 101 + i)[0] for i in range(7))
    assert found["tpot_mean_s"] == pytest.approx(steps_s / 7)


def played(load: Load, most: float) -> Played:
    requests = [Request(i, 0.0, load.model, 100, 8) for i in range(40)]
    engine = SimEngine(CONFIG)
    model = zoo.sharded(load.model, load.tp)
    return play(requests, model, load.hardware(), engine, load.limits(), most)


def test_a_client_has_no_more_outstanding_than_its_connections() -> None:
    found = played(LOAD, 3)
    ends = np.sort(found.last_s)
    for i, sent_s in enumerate(found.sent_s):
        assert i - (ends <= sent_s + 1e-9).sum() < 3
    assert (played(LOAD, inf).sent_s == 0).all()


def test_capacity_is_what_an_overloaded_deployment_completes() -> None:
    capacity = simulated(LOAD, CONFIG, {})["capacity_per_s"]
    below, beyond = (
        simulated(replace(LOAD, rate_per_s=factor * capacity, duration_s=10.0), CONFIG)
        for factor in (0.5, 2.0)
    )
    assert below["output_tokens_per_s"] == pytest.approx(0.5 * capacity * 8, rel=0.1)
    assert beyond["output_tokens_per_s"] == pytest.approx(capacity * 8, rel=0.1)
    two = replace(LOAD, num_gpus=2)
    assert simulated(two, CONFIG, {})["capacity_per_s"] == pytest.approx(2 * capacity, rel=0.1)


def test_a_prompt_that_was_sent_before_is_not_computed_again() -> None:
    """The second and last of two equal prompts, long after the first."""
    cached = replace(LOAD, prefix_caching=True, distinct_prompts=1, prompt_tokens=1000)
    apart = replace(cached, rate_per_s=0.01, duration_s=200.0)
    assert CONFIG.costs is not None
    cost = ServedCost(zoo.model("llama3.1-8b"), zoo.device("h100_sxm"), CONFIG.costs)
    prefills_s = cost.mixed_step([(0, 1000)], 0, 0), cost.mixed_step([(992, 8)], 0, 0)
    found = simulated(apart, CONFIG)
    assert found["ttft_mean_s"] == pytest.approx(sum(prefills_s) / 2 + CONFIG.costs.path_s)
    assert (
        found["tpot_mean_s"]
        == simulated(replace(apart, prefix_caching=False), CONFIG)["tpot_mean_s"]
    )


def test_prompts_that_are_all_distinct_hit_nothing() -> None:
    on = replace(LOAD, prefix_caching=True)
    assert simulated(on, CONFIG) == simulated(LOAD, CONFIG)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (replace(LOAD, tp=2), "tp=2 does not divide 1 GPUs"),
        (replace(LOAD, tp=16, num_gpus=16), "in nodes of 8"),
        (
            replace(LOAD, chunked_prefill=False, prompt_tokens=2049),
            "a prompt of 2049 tokens never fits into max_num_batched_tokens=2048",
        ),
        (replace(LOAD, prompt_tokens=200_000), "has more than llama3.1-8b's 131072"),
    ],
)
def test_a_load_that_cannot_be_simulated_says_why(load: Load, said: str) -> None:
    assert said in simulated(load, CONFIG)["reason"]


def test_the_policy_is_the_one_of_any_run() -> None:
    node = zoo.node("system/vllm.yaml")
    assert node["_target_"] == "systems.baselines.vllm.VllmSystem"
    eager = engine_config("eager_2024")
    assert eager.costs is None
    assert settings(zoo.node("engine/sim.yaml"), SimEngine, "engine") == eager
    assert build(zoo.node("engine/sim.yaml"), "engine").name == "sim"
