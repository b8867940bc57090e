"""What a parity run takes over from the real one, by which profile, and where its report goes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.calibrate import zoo
from harness.config import typed
from harness.engine_api import kv_blocks_by_model
from harness.errors import RunError, UsageError
from harness.fidelity import points
from harness.fidelity.__main__ import check, parser, report_folder
from harness.fidelity.points import calibrated, same_limits, same_memory
from harness.hardware import Hardware
from harness.options import plain
from harness.schedule import Schedule
from harness.sim.cost import CostModel
from tests.running import composed
from workloads import compose


@pytest.mark.parametrize("engine", ["torch", "vllm", "sim"])
def test_the_simulation_gets_the_kv_memory_of_any_engines_manifest(engine: str) -> None:
    settled = {"block_tokens": 32, "num_kv_blocks": kv_blocks_by_model([("tiny-llama", 512)])}
    manifest = {"world": engine, "engine": settled}
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
        (["--passes", "1"], "results/published/fidelity"),
        (["--loads", "0.9"], "results/runs/fidelity/torch"),
        (["--workloads", "burstgpt", "--engine", "vllm"], "results/runs/fidelity/vllm"),
    ],
)
def test_the_report_that_figures_quote_is_kept_from_other_engines(
    words: list[str], folder: str
) -> None:
    arguments = parser().parse_args(words)
    assert report_folder(arguments) == Path(folder)


@pytest.mark.parametrize("workload", points.HELD_OUT)
def test_the_knee_is_of_the_requests_that_the_points_begin_with(
    workload: str, data_dir: Path, tmp_path: Path
) -> None:
    home = [f"data.dir={data_dir}", f"data.cache_dir={tmp_path}", "data.download=false"]

    def replayed(num_requests: int) -> Schedule:
        every = points.Point(workload, 5.0, num_requests).overrides()
        overrides = [text for text in every if text.startswith("workload.")]
        return compose.workload(compose.composed(workload, [*home, *overrides])).schedule()

    few, many = replayed(200), replayed(700)
    assert (few.prompt_tokens == many.prompt_tokens[:200]).all()
    assert (few.output_tokens == many.output_tokens[:200]).all()


@pytest.mark.parametrize(
    "wrong", [["--passes", "0"], ["--num-requests", "0"], ["--loads", "0"], ["--loads", "nan"]]
)
def test_what_cannot_be_a_point_is_refused(wrong: list[str]) -> None:
    with pytest.raises(UsageError, match=wrong[0]):
        check(parser().parse_args(wrong))


def test_runs_of_different_schedules_are_no_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = {"block_tokens": 16, "num_kv_blocks": {"m": 3}}
    manifests = iter([{"schedule_sha256": digest, "engine": engine} for digest in "ab"])

    def run(*_: object) -> SimpleNamespace:
        return SimpleNamespace(manifest=next(manifests))

    monkeypatch.setattr(points, "run", run)
    with pytest.raises(RunError, match="different schedules"):
        points.pair(points.Point("azure_code", 1.0, 9), tmp_path, "torch", keep=False)


def test_each_engine_is_simulated_by_its_own_profile() -> None:
    ours, vllm = (
        composed("+system=vllm", calibrated(engine)).hardware for engine in ("torch", "vllm")
    )
    assert ours.name == "local"
    assert vllm.name == "local_vllm"
    assert vllm.calibration.turnaround_s == 0
    profile: Hardware = typed(plain(vllm), Hardware, "hardware")
    assert profile.calibration.path_s > 0
    assert CostModel(zoo.model("tiny-llama"), profile).source == "measured"
