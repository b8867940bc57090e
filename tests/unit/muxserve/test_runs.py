"""Whole runs in the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UsageError
from tests.running import run_here

SMALL = (
    "+system=muxserve", "+workload=aegaeon", "workload.dataset.parameters.num_models=16",
    "engine=sim", "slo=aegaeon", "figure=null",
)  # fmt: skip


def test_models_side_by_side_meet_the_slo(tmp_path: Path) -> None:
    summary = run_here(tmp_path / "run", *SMALL, "hardware=h100x8")
    assert summary["num_completed"] == summary["num_requests"] > 100
    assert summary["slo_attainment"]["token"] > 0.99


def test_all_requests_finish_under_overload_with_moving_quotas(tmp_path: Path) -> None:
    crowded = ("hardware=h100x8", "workload.scale.rate=20", "workload.scale.how=stretch")
    summary = run_here(tmp_path / "run", *SMALL, *crowded, "system.quotas.window_s=0.5")
    assert summary["num_completed"] == summary["num_requests"]
    assert summary["ttft_s"]["mean"] > 0.1


def test_more_models_than_fit_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot find a placement for 16 models"):
        run_here(tmp_path / "run", *SMALL, "hardware=h100x1")
    assert not (tmp_path / "run").exists()


def test_it_runs_in_the_simulator_alone(tmp_path: Path) -> None:
    one = ("+system=muxserve", "+workload=azure_code", "model_set=one", "workload.num_requests=2")
    with pytest.raises(UsageError, match="choose engine=sim"):
        run_here(tmp_path / "run", *one, "engine=torch", "figure=null")
