"""Whole runs in the simulator: everything finishes, models take turns, options do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.errors import UsageError
from tests.running import run_here
from workloads.data import BUNDLED

SMALL = (
    "+workload=aegaeon", "workload.dataset.parameters.num_models=24", "engine=sim",
    "hardware=h100x8", "slo=aegaeon", "figure=null",
)  # fmt: skip


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    rows = pq.read_table(run_dir / "events.parquet").to_pylist()
    return [row for row in rows if row["kind"] == kind]


Plain = tuple[Path, dict[str, Any]]  # a run of the system as it is, and its summary


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    path = tmp_path_factory.mktemp("plain")
    return path, run_here(path, "+system=serverlessllm", *SMALL)


def test_all_requests_finish_on_fewer_devices_than_models(plain: Plain) -> None:
    path, summary = plain
    assert summary["num_completed"] == summary["num_requests"] > 200
    assert len(events(path, "load")) >= 24
    assert not events(path, "preempt")  # scaling waits for requests to end


def test_a_slower_load_costs_attainment_and_each_load_takes_its_time(
    plain: Plain, tmp_path: Path
) -> None:
    slow_rate = "system.load_bytes_per_s=4e9"
    slow = run_here(tmp_path / "slow", "+system=serverlessllm", slow_rate, *SMALL)
    assert slow["ttft_s"]["mean"] > plain[1]["ttft_s"]["mean"] + 1
    switches = events(tmp_path / "slow", "switch")
    shortest_s = min(event["end_s"] - event["start_s"] for event in switches)
    assert shortest_s >= 15.2e9 / 4e9  # qwen2.5-7b's weights, the smallest


def test_a_load_faster_than_the_link_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"hardware's link .* system\.load_bytes_per_s="):
        run_here(tmp_path / "run", "+system=serverlessllm", "system.load_bytes_per_s=1e12", *SMALL)


def test_a_long_keep_alive_makes_other_models_wait(plain: Plain, tmp_path: Path) -> None:
    kept = run_here(tmp_path / "9", "+system=serverlessllm", "system.paper.keep_alive_s=9", *SMALL)
    assert kept["ttft_s"]["mean"] > plain[1]["ttft_s"]["mean"] + 1
    assert kept["num_completed"] == kept["num_requests"]


def test_unknown_variants_and_engines_without_turns_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="variant=code is unknown"):
        run_here(tmp_path / "a", "+system=serverlessllm", "system.variant=code", *SMALL)
    with pytest.raises(UsageError, match="models take turns on: choose engine=torch"):
        run_here(tmp_path / "b", "+system=serverlessllm", *SMALL, "engine=none")


def test_the_artifact_drops_who_waits_and_loses_kv_only_where_it_reorders(
    tmp_path: Path,
) -> None:
    path = f"workload.path={BUNDLED}/aegaeon_workloads/synth-48-0.1-1.0-1.0.csv"
    command = (
        "+workload=aegaeon", path, "engine=sim", "hardware=h100x16", "slo=aegaeon", "figure=null",
        "system.variant=artifact",
    )  # fmt: skip
    summary = run_here(tmp_path / "fcfs", "+system=serverlessllm", *command)
    assert summary["num_failed"] > 0
    assert not events(tmp_path / "fcfs", "preempt")
    assert 0 < summary["slo_attainment"]["time"] < summary["slo_attainment"]["token"] < 1
    run_here(tmp_path / "sjf", "+system=serverlessllm_plus", *command)
    assert events(tmp_path / "sjf", "preempt")


def first_tokens_s(tmp_path: Path, name: str, *overrides: str) -> list[float]:
    """Of A, B and A again, a second apart, on one device; the first A takes some seconds."""
    rows = ["00:00:00.000,A,100,600", "00:00:01.000,B,100,20", "00:00:02.000,A,100,20"]
    path = tmp_path / f"{name}.csv"
    path.write_text("\n".join(["Request Time,Model Name,Input Length,Output Length", *rows, ""]))
    run_here(
        tmp_path / name, "+system=serverlessllm", "+workload=aegaeon", f"workload.path={path}",
        "engine=sim", "hardware=h100x1", "slo=aegaeon", "figure=null", *overrides,
    )  # fmt: skip
    requests = pq.read_table(tmp_path / name / "requests.parquet").to_pylist()
    return [request["token_times_s"][0] for request in requests]


def test_a_request_overtakes_older_ones_of_other_models_only_where_it_may(tmp_path: Path) -> None:
    _, waits, joins = first_tokens_s(tmp_path, "overtakes")
    assert joins < 3 < waits  # A's instance runs on, and B waits for its end
    _, served, queues = first_tokens_s(tmp_path, "in_turn", "system.paper.overtakes=false")
    assert served <= waits
    assert queues > served


def test_a_start_takes_as_long_as_an_engine_where_engines_restart(tmp_path: Path) -> None:
    loads = first_tokens_s(tmp_path, "loads")
    restart = ("system.restarts_engine=true", "engine.pool.restart_s=3")
    starts = first_tokens_s(tmp_path, "starts", *restart)
    assert starts[0] == pytest.approx(loads[0] + 3, abs=0.01)
    assert starts[1] == pytest.approx(loads[1] + 2 * 3, abs=0.2)
