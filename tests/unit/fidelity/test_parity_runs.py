"""What a parity run takes over from the real one, by which profile, and where its report goes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.calibrate import zoo
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.engine_api import kv_blocks_by_model
from harness.errors import RunError, UsageError
from harness.fidelity import parity_runs
from harness.fidelity.arguments import check, parity_parser, profile_name, report_folder
from harness.fidelity.parity_runs import same_limits, same_memory
from harness.fidelity.speed import stream, time_scale
from harness.records.run_folder import FinishedRun
from harness.schedule import Schedule
from tests.running import composed, run_here
from workloads import compose

SETTING = parity_runs.Setting("tiny-llama", "local", 0.25, 0.25, 0.01)


@pytest.mark.parametrize("engine", ["torch", "vllm", "sim"])
def test_the_simulation_gets_the_kv_memory_of_any_engines_manifest(engine: str) -> None:
    settled = {"block_tokens": 32, "num_kv_blocks": kv_blocks_by_model([("tiny-llama", 512)])}
    manifest = {"engine_name": engine, "engine": settled}
    config = composed("+system=vllm", "engine=sim", *same_memory(manifest["engine"]))
    assert (config.engine.num_kv_blocks, config.engine.block_tokens) == (512, 32)


def test_instances_of_a_model_count_with_the_fewest_blocks() -> None:
    seen = [("a", 9), ("b", 3), ("a", 7), ("a", 8)]
    assert kv_blocks_by_model(seen) == {"a": 7, "b": 3}


def test_two_models_have_no_common_memory() -> None:
    with pytest.raises(RunError, match="serves one model, not 2: a, b"):
        same_memory({"block_tokens": 32, "num_kv_blocks": {"a": 9, "b": 9}})


def test_the_simulation_gets_the_limits_that_a_server_settled_on() -> None:
    limits = {"max_num_seqs": 7, "max_num_batched_tokens": 99, "enable_chunked_prefill": False}
    manifest = {"servers": {"vllm-0": limits | {"dtype": "float32"}}}
    system = composed("+system=vllm", "engine=sim", *same_limits(manifest)).system
    assert {name: system[name] for name in limits} == limits
    assert same_limits({"num_kv_blocks": {"m": 3}}) == ()


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        ([], "results/published/fidelity"),
        (["--engine", "vllm"], "results/published/fidelity/vllm"),
        (["--engine", "vllm", "--out", "here"], "here"),
        (["--passes", "1"], "results/runs/fidelity/torch"),
        (["--model", "tiny-llama-wide"], "results/runs/fidelity/torch"),
        (["--loads", "0.9"], "results/runs/fidelity/torch"),
        (["--workloads", "burstgpt", "--engine", "vllm"], "results/runs/fidelity/vllm"),
    ],
)
def test_the_report_that_figures_quote_is_kept_from_other_engines(
    words: list[str], folder: str
) -> None:
    arguments = parity_parser().parse_args(words)
    assert report_folder(arguments) == Path(folder)


@pytest.mark.parametrize("workload", parity_runs.HELD_OUT)
def test_the_knee_is_of_the_requests_of_the_points(
    workload: str, data_dir: Path, tmp_path: Path
) -> None:
    home = [f"data.dir={data_dir}", f"data.cache_dir={tmp_path}", "data.download=false"]

    def replayed(rate_per_s: float) -> Schedule:
        every = parity_runs.LoadPoint(workload, rate_per_s, 700, SETTING).overrides()
        overrides = [text for text in every if text.startswith("workload.")]
        return compose.workload(compose.composed(workload, [*home, *overrides])).schedule()

    burst, slow = replayed(1e6), replayed(5.0)
    assert (burst.prompt_tokens == slow.prompt_tokens).all()
    assert (burst.output_tokens == slow.output_tokens).all()
    assert len(burst) == len(slow) == 700


def test_a_knee_counts_neither_the_start_nor_the_tail_of_a_burst() -> None:
    steady = np.arange(100, 1000) / 10  # 10/s
    slow_start, tail = np.linspace(0, 9, 50), np.linspace(101, 400, 50)
    assert parity_runs.steady_per_s(np.concatenate([tail, slow_start, steady])) == pytest.approx(
        10.0
    )
    with pytest.raises(RunError, match="9 completed"):
        parity_runs.steady_per_s(np.arange(9.0))


@pytest.mark.parametrize(
    "wrong",
    [
        ["--passes", "0"], ["--num-requests", "0"], ["--loads", "0"], ["--loads", "nan"],
        ["--loads", "0.3", "0.3"], ["--length-scale", "0"], ["--ttft-s", "nan"],
        ["--hardware", "h100x1", "--engine", "vllm"],
    ],
)  # fmt: skip
def test_what_cannot_be_a_point_is_refused(wrong: list[str]) -> None:
    with pytest.raises(UsageError, match=wrong[0]):
        check(parity_parser().parse_args(wrong))


def test_a_report_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.touch()
    with pytest.raises(UsageError, match=r"cannot write into .*taken"):
        check(parity_parser().parse_args(["--out", str(file)]))


def test_kept_runs_that_are_not_there_are_told_first(tmp_path: Path) -> None:
    words = ["--keep", "--runs", str(tmp_path), "--out", str(tmp_path)]
    with pytest.raises(UsageError, match="knee is not a complete run"):
        check(parity_parser().parse_args(words))


def test_more_requests_than_are_held_out_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = SimpleNamespace(summary={"num_requests": 700})
    monkeypatch.setattr(parity_runs, "run", lambda *_: short)
    with pytest.raises(UsageError, match="--num-requests 1000: azure_code has 700"):
        parity_runs.serve(
            parity_runs.LoadPoint("azure_code", 1.0, 1000, SETTING), tmp_path, "torch", keep=False
        )


def test_an_invalid_simulation_is_no_measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = {"block_tokens": 16, "num_kv_blocks": {"m": 3}}
    made = SimpleNamespace(
        manifest={"schedule_sha256": "a", "engine": engine},
        config={"hardware": {"name": "another"}},
        summary={"num_requests": 9},
        invalid="Little",
    )
    monkeypatch.setattr(parity_runs, "run", lambda *_: made)
    with pytest.raises(RunError, match="not VALID: Little"):
        parity_runs.simulate(made, (), SETTING, tmp_path)


def test_runs_of_different_schedules_are_no_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = {"block_tokens": 16, "num_kv_blocks": {"m": 3}}
    real, other = (
        SimpleNamespace(
            manifest={"schedule_sha256": digest, "engine": engine},
            config={"hardware": {"name": "another"}},
        )
        for digest in "ab"
    )
    monkeypatch.setattr(parity_runs, "run", lambda *_: other)
    with pytest.raises(RunError, match="different schedules"):
        parity_runs.simulate(real, (), SETTING, tmp_path)


def test_a_slower_machine_is_simulated_with_all_its_times_longer() -> None:
    words = parity_runs.known(zoo.hardware("local").calibration, SETTING, 1.5)
    then, now = (
        composed("+system=vllm", "hardware=local", *more).hardware.calibration
        for more in ((), words)
    )
    before, after = (c.measured["tiny-llama_tp1"] for c in (then, now))
    assert set(before) == set(after)
    for key in before:
        assert after[key] == pytest.approx(1.5 * before[key], rel=1e-5), key
    assert now.turnaround_s == pytest.approx(1.5 * then.turnaround_s, rel=1e-5)
    assert {
        key: v for key, v in now.items() if key not in ("measured", "turnaround_s", "path_s")
    } == {key: v for key, v in then.items() if key not in ("measured", "turnaround_s", "path_s")}


def test_a_models_name_may_have_a_dot() -> None:
    there = zoo.hardware("local").calibration
    found = replace(there, measured={"llama3.2-1b_tp1": there.measured["tiny-llama_tp1"]})
    words = parity_runs.known(found, replace(SETTING, model="llama3.2-1b"), 2.0)
    now = composed("+system=vllm", "hardware=local", *words).hardware.calibration.measured
    expected = {k: 2 * v for k, v in asdict(there.measured["tiny-llama_tp1"]).items()}
    assert now["llama3.2-1b_tp1"] == expected


@pytest.mark.parametrize("times", [1.0, 1.3])
def test_a_runs_speed_is_read_from_its_token_times(tmp_path: Path, times: float) -> None:
    point = parity_runs.LoadPoint("azure_code", 12.0, 200, SETTING)
    words = [text for text in point.overrides() if text not in parity_runs.COMMON]
    slower = parity_runs.known(zoo.hardware("local").calibration, SETTING, times)
    more = [*slower, "hardware=local", "hardware.name=elsewhere", "engine=sim", "+system=vllm"]
    more += ["workload.lengths.scale_output=0.1"]  # many answers are of one token
    run_here(tmp_path / "run", *words, *more)
    served = FinishedRun.load(tmp_path / "run")
    assert any(len(request) == 1 for request in served.requests["token_times_s"].to_pylist())
    assert time_scale(served, SETTING) == pytest.approx(times, rel=0.02)


def test_a_run_is_held_to_the_calibration_that_it_ran_with(tmp_path: Path) -> None:
    slower = parity_runs.known(zoo.hardware("local").calibration, SETTING, 1.3)
    point = parity_runs.LoadPoint("azure_code", 12.0, 20, SETTING)
    words = [text for text in point.overrides() if text not in parity_runs.COMMON]
    run_here(tmp_path / "run", *words, "hardware=local", "engine=sim", "+system=vllm", *slower)
    served = FinishedRun.load(tmp_path / "run")
    then, now = parity_runs.calibration(served, SETTING), zoo.hardware("local").calibration
    assert then.turnaround_s == pytest.approx(1.3 * now.turnaround_s)
    assert parity_runs.known(then, SETTING, 1.0) == slower
    of_vllm = replace(SETTING, profile="local_vllm")
    assert parity_runs.calibration(served, of_vllm) == zoo.hardware("local_vllm").calibration


def test_tokens_that_came_in_one_chunk_are_each_in_the_stream() -> None:
    row = {
        "prompt_tokens": 3,
        "sent_s": 0.5,
        "token_times_s": [1.0, 1.0, 2.0],
        "chunk_tokens": [2, 1],
    }
    assert stream(row).times_s.tolist() == [1.0, 1.0, 2.0]


def test_each_engine_is_simulated_by_its_own_profile() -> None:
    words = (["--engine", "torch"], ["--engine", "vllm"], ["--hardware", "h100x1"])
    names = [profile_name(parity_parser().parse_args(each)) for each in words]
    assert names == ["local", "local_vllm", "local_gpu"]  # the last one once there is a GPU
    ours, vllm = (composed("+system=vllm", f"hardware={name}").hardware for name in names[:2])
    assert ours.name == "local"
    assert vllm.name == "local_vllm"
    assert vllm.calibration.turnaround_s == 0
    profile: Hardware = typed(plain(vllm), Hardware, "hardware")
    assert profile.calibration.path_s > 0
    assert CostModel(zoo.model("tiny-llama"), profile).source == "measured"
