"""W&B offline, and what a live run tells each second."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from math import floor
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from PIL import Image
from wandb.wandb_agent import Agent

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.records.run_folder import FinishedRun, RunFolder
from harness.running.tracking import EachSecond, wandb_mode
from tests.conftest import ROOT
from tests.golden.test_golden import flat
from tests.unit.metrics import wandb_log
from tests.unit.metrics.service import Service, steady, write_run


@pytest.fixture
def without_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


def tracker_of(announce: Callable[[str], None], **changes: Any) -> Any:
    node = plain(OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml"))
    return build(node | changes, "tracking", announce=announce)


def manifest(config_hash: str = "abc", *, simulated: bool = True) -> dict[str, Any]:
    choices = {"system": "vllm", "workload": "dice", "engine": "sim"}
    return {
        "config_hash": config_hash, "served_hash": config_hash, "simulated": simulated,
        "choices": choices, "sources": {},
        "schedule_sha256": "0" * 64, "git": {"revision": "1234567", "dirty": False},
    }  # fmt: skip


@pytest.mark.usefixtures("without_account")
def test_wandb_records_offline_without_an_account(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_run(tmp_path / "run", steady(20))
    samples = [
        {"time_s": time_s, "gpu": gpu, "memory_bytes": 2**30 + gpu, "power_w": power_w}
        for time_s in (0.0, 0.5)
        for gpu, power_w in ((0, 70.0), (1, None))
    ]
    RunFolder(path).write_gpu(samples)
    for name in ("run", "scaling", "engine_metrics"):
        Image.new("RGB", (2, 2)).save(path / f"{name}.png")
    told: list[str] = []
    tracker = tracker_of(told.append)
    tracker.start({"seed": 7}, RunFolder(path).manifest(), path)
    tracker.second({"time_s": 1.0, "tokens_per_s": 5.0})
    tracker.finish(complete=True)
    assert told == []
    assert capfd.readouterr() == ("", "")
    history = wandb_log.history_of(path)
    assert {"live/time_s": 1, "live/tokens_per_s": 5}.items() <= history[1].items()
    assert sum("per_second/tokens_per_s" in row for row in history) > 1
    (first, last) = [row for row in history if "gpu/0/power_w" in row]
    assert (first["gpu/time_s"], last["gpu/time_s"]) == (0, 0.5)
    assert last["gpu/1/memory_bytes"] == 2**30 + 1
    assert "gpu/1/power_w" not in last
    logged = {key: value for row in history for key, value in row.items()}
    for name in ("run", "scaling", "engine_metrics"):
        assert logged[f"figures/{name}/_type"] == "image-file"
    summary, found = flat(wandb_log.summary_of(path)), flat(FinishedRun.load(path).summary)
    for name in ("ttft_s", "tpot_s", "e2e_s", "send_lag_s", "tbt_s"):
        assert sum(logged[f"requests/{name}/values"]) == found[f"{name}.num_samples"] >= 20
    for name in ("fluidity_index", "qoe"):
        assert sum(logged[f"requests/{name}/values"]) == 20
    arrived = [row for row in history if "by_arrival/within_slo" in row]
    arrivals_s = FinishedRun.load(path).requests["arrival_s"].to_pylist()
    assert [row["by_arrival/time_s"] for row in arrived] == sorted({*map(floor, arrivals_s)})
    assert all(row["by_arrival/tpot_s"] < row["by_arrival/e2e_s"] for row in arrived)
    for name in ("goodput_per_s", "verdict.status", "ttft_s.mean", "slo_attainment.request"):
        assert summary[name] == found[name]


@pytest.mark.usefixtures("without_account")
def test_wandb_knows_what_a_run_used_and_what_it_made(tmp_path: Path) -> None:
    used, names = [], set()
    for name in ("one", "two"):
        path = write_run(tmp_path / name, steady(20))
        tracker = tracker_of(pytest.fail)
        tracker.start({"seed": 7}, RunFolder(path).manifest(), path)
        tracker.finish(complete=True)
        found = {
            each.artifact.type: each.artifact
            for each in wandb_log.records(path)
            if each.HasField("artifact")
        }
        of_type = {kind: artifact.use_after_commit for kind, artifact in found.items()}
        assert of_type == {"schedule": True, "profile": True, "run": False}
        names |= {found["schedule"].name, found["profile"].name}
        used.append((found["schedule"].digest, found["profile"].digest))
        made = {each.path for each in found["run"].manifest.contents}
        assert {"requests.parquet", "summary.json", "manifest.json"} <= made
    assert used[0] == used[1], "one version for both"
    assert names == {"schedule-000000000000", "hardware-bench"}


@pytest.mark.usefixtures("without_account")
def test_a_run_made_again_takes_the_place_of_its_own(tmp_path: Path) -> None:
    runs = []
    for name in ("first", "again", "edited", "other"):
        config_hash = "def" if name == "other" else "abc"
        (tmp_path / name).mkdir()
        tracker = tracker_of(pytest.fail, group="mine" if name == "other" else None)
        of = manifest(config_hash, simulated=name == "other")
        of["sources"] = {"systems/a.py": "1" if name == "edited" else "0"}
        if name == "again":
            of["config_hash"] = "of another SLO"
        tracker.start({"seed": 7}, of, tmp_path / name)
        tracker.finish(complete=False)
        runs.append(wandb_log.run_of(tmp_path / name))
    first, again, edited, other = (run.run_id for run in runs)
    assert first == again != edited, "another policy's run is not written over"
    assert edited.startswith("abc-")
    assert other.startswith("def-")
    assert first.endswith(re.sub(r"[^\w.-]", "_", platform.node()))
    assert [run.job_type for run in runs] == ["live run"] * 3 + ["simulated run"]
    assert [run.run_group for run in runs] == ["vllm-dice-sim"] * 3 + ["mine"]
    assert not any(run.resume for run in runs), "W&B overwrites a run of the same id"
    known = wandb_log.config_of(tmp_path / "other")
    assert (known["seed"], known["choices"]["system"], known["config_hash"]) == (7, "vllm", "def")


@pytest.mark.usefixtures("without_account")
def test_the_sweep_of_the_docs_runs_as_wandbs_agent_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = yaml.safe_load((ROOT / "docs/examples/wandb-sweep.yaml").read_text())
    for name in ("WANDB_DIR", "WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):  # the agent sets them
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.chdir(ROOT)
    agent = Agent(api=None, queue=None, sweep_id="sweep1")
    agent._sweep_command = sweep["command"]
    chosen = {key: {"value": each["values"][-1]} for key, each in sweep["parameters"].items()}
    args = chosen | {"runs_dir": {"value": str(tmp_path / "runs")}}
    agent._command_run({"run_id": "theirs", "program": sweep["program"], "args": args})
    assert agent._run_processes["theirs"].wait() == 0
    (path,) = (tmp_path / "runs").glob("*")
    run = FinishedRun.load(path)
    for key, of_key in chosen.items():
        group, *names = key.split(".")
        assert reduce(dict.__getitem__, names, run.config[group]) == of_key["value"]
    tracked = wandb_log.run_of(path)
    assert (tracked.run_id, tracked.sweep_id) == ("theirs", "sweep1")
    assert wandb_log.summary_of(path)[sweep["metric"]["name"]] == run.summary["goodput_per_s"]


FIRST_SECOND = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from harness.configuration.config import build
from harness.configuration.options import CONF, plain
node = OmegaConf.load(CONF / "tracking" / "wandb.yaml")
tracker = build(plain(node), "tracking", announce=print)
manifest = {"config_hash": "abc", "simulated": False, "schedule_sha256": "", "git": None}
manifest |= {"served_hash": "abc", "sources": {}}
manifest["choices"] = {"system": "a", "workload": "b", "engine": "c"}
tracker.start({"seed": 7}, manifest, Path(sys.argv[1]))
before = set(sys.modules)
tracker.second({"time_s": 1.0, "tokens_per_s": 5.0})
found = sorted(set(sys.modules) - before)
tracker.finish(complete=False)
print(found)
"""


@pytest.mark.usefixtures("without_account")
def test_wandb_imports_nothing_while_requests_are_sent(tmp_path: Path) -> None:
    """The client sends from the thread that logs: an import of 0.1 s would make it late."""
    command = [sys.executable, "-c", FIRST_SECOND, str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


@pytest.mark.usefixtures("without_account")
def test_wandb_gets_one_table_of_a_sweep_and_a_plot_of_each_number(tmp_path: Path) -> None:
    rows = [
        {"scale.rate": rate, "run": f"run-{rate}", "ttft_s.mean": rate / 2, "goodput_per_s": rate}
        for rate in (1, 2)
    ]
    tracker_of(pytest.fail).sweep(rows, ["scale.rate"], "sweep-abc", tmp_path)
    assert wandb_log.run_of(tmp_path).job_type == "sweep"
    logged = {key for row in wandb_log.history_of(tmp_path) for key in row}
    drawn = [f"Custom Chart Tables/sweep/{name}_table" for name in ("ttft_s_mean", "goodput_per_s")]
    assert {f"{table}/path" for table in ("sweep/table", *drawn)} <= logged
    assert not any("run_table" in key or "scale_rate_table" in key for key in logged)
    assert any("run-2" in path.read_text() for path in tmp_path.rglob("*.table.json"))


def test_a_live_run_is_told_each_second() -> None:
    service = Service((0.0, 3), (0.5, 2))
    rows: list[dict[str, float]] = []
    second = EachSecond(service.recorder, lambda row: rows.append(dict(row)))
    service.complete(0, 0.2, 0.3, 0.4)
    second.update(0.9)
    assert rows == []
    service.send(1)
    second.update(2.0)
    service.tokens(1, 2.5)
    second.update(2.9)
    second.update(3.0)
    assert [row["time_s"] for row in rows] == [2.0, 3.0]
    assert [row["tokens_per_s"] for row in rows] == [1.5, 1.0]
    assert [(row["running"], row["queued"]) for row in rows] == [(0, 1), (1, 0)]


@pytest.mark.usefixtures("without_account")
def test_a_broken_wandb_is_told_and_costs_the_run_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    tracker = tracker_of(told.append, project="no/slashes/allowed")
    tracker.start({}, manifest(), tmp_path)
    tracker.finish(complete=False)
    assert len(told) == 1
    assert told[0].startswith("W&B tracking stopped: ")


@pytest.mark.usefixtures("without_account")
def test_wandb_goes_online_only_with_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wandb_mode("auto") == "offline"
    assert wandb_mode("online") == "online"
    key = "0" * 40
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {key}\n")
    (tmp_path / "netrc").chmod(0o600)
    assert wandb_mode("auto") == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert wandb_mode("auto") == "online"
    assert wandb_mode("offline") == "offline"


def test_tracking_none_leaves_nothing(tmp_path: Path) -> None:
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "none.yaml")
    tracker = build(plain(node), "tracking", announce=print)
    tracker.start({}, manifest(), tmp_path)
    tracker.finish(complete=False)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracking_mode_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="auto, online, offline"):
        tracker_of(print, mode="sometimes")
