"""variant=artifact against an independent, iteration-by-iteration account of the same rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.cost.profile import HardwareProfile
from harness.prepare import prepare
from harness.records.run_folder import FinishedRun
from tests.running import composed, run_here
from tests.unit.serverlessllm.reference import Reference

GIGABYTES = {"qwen2.5-7b": 14, "yi1.5-9b": 18, "llama2-13b": 26}
COMMAND = (
    "+workload=aegaeon", "hardware=h100x16", "engine=sim", "system.variant=artifact",
    "slo=aegaeon", "tracking=none", "figure=null",
)  # fmt: skip


def file(data_dir: Path, num_models: int) -> str:
    return f"workload.path={data_dir}/aegaeon_workloads/synth-{num_models}-0.1-1.0-1.0.csv"


@pytest.mark.parametrize("num_models", [30, 60])
@pytest.mark.parametrize("system", ["serverlessllm", "serverlessllm_plus"])
def test_every_token_comes_when_the_rules_say(
    system: str, num_models: int, data_dir: Path, tmp_path: Path
) -> None:
    command = (f"+system={system}", *COMMAND, file(data_dir, num_models))
    run_here(tmp_path / "run", *command)
    parts = prepare(composed(*command))
    load_s = {name: GIGABYTES[spec.name] / 16 for name, spec in parts.models.items()}
    reference = Reference(
        HardwareProfile(parts.hardware), parts.models, load_s, 16,
        sjf=system == "serverlessllm_plus",
    )  # fmt: skip
    jobs = reference.play(parts.schedule.requests())
    rows = pq.read_table(FinishedRun.load(tmp_path / "run").path / "requests.parquet").to_pylist()
    wrong = [
        row["request_id"]
        for row, job in zip(rows, jobs, strict=True)
        if (row["status"] == "completed") == job.dead
        or (not job.dead and not np.allclose(row["token_times_s"], job.token_times_s, atol=1e-6))
    ]
    assert not wrong, f"{len(wrong)} of {len(jobs)}: {wrong[:10]}"


def test_a_file_is_read_as_far_as_the_workload_says_whatever_the_system(tmp_path: Path) -> None:
    arrivals = ["00:00:00.500", "00:01:59.999", "00:02:00.000", "00:03:10.000"]
    rows = [f"{arrival},synth_model_{i},100,20" for i, arrival in enumerate(arrivals)]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["Request Time,Model Name,Input Length,Output Length", *rows, ""]))

    def arrivals_s(*overrides: str) -> list[float]:
        parts = prepare(composed(*overrides, f"workload.path={path}"))
        return list(parts.schedule.arrival_s)

    whole = [0.5, 119.999, 120.0, 190.0]
    for system in ("serverlessllm", "serverlessllm_plus", "aegaeon", "muxserve"):
        command = (f"+system={system}", *COMMAND)
        assert arrivals_s(*command) == whole
        assert arrivals_s(*command, "workload.read_until_s=120") == whole[:2]
    command = ("+system=serverlessllm", *COMMAND, "workload.read_until_s=120")
    run_here(tmp_path / "run", *command, f"workload.path={path}")
    run = FinishedRun.load(tmp_path / "run")
    assert run.summary["num_completed"] == run.summary["num_requests"] == 2
    assert run.manifest["dataset"]["steps"] == ["2 rows from 120 s on left out"]
    assert not run.manifest["dataset"]["synthetic"]
