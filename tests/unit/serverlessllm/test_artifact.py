"""variant=artifact against an independent, iteration-by-iteration account of the same rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from harness.prepare import prepare
from harness.run_folder import FinishedRun
from harness.sim.profile import HardwareProfile
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
