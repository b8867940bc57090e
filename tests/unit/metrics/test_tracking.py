"""W&B offline, and what a live run tells each second."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.configuration.config import build
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.running.tracking import EachSecond, wandb_mode
from tests.conftest import ROOT
from tests.unit.metrics.service import Service, steady, write_run


@pytest.fixture
def without_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.usefixtures("without_account")
def test_wandb_records_offline_without_an_account(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    service = steady(20)
    path = write_run(tmp_path / "run", service)
    told: list[str] = []
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml")
    tracker = build(plain(node), "tracking", announce=told.append)
    tracker.start({"seed": 7}, "a run", path)
    tracker.second({"time_s": 1.0, "tokens_per_s": 5.0})
    tracker.finish(complete=True)
    assert told == []
    assert capfd.readouterr() == ("", "")
    (log,) = path.glob("wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    for words in (
        b"per_second/tokens_per_s", b"live/tokens_per_s", b"goodput_per_s", b"requests.parquet",
    ):  # fmt: skip
        assert words in content


@pytest.mark.usefixtures("without_account")
def test_a_run_made_again_takes_the_place_of_its_own(tmp_path: Path) -> None:
    """By wandb's id, which its folder ends with: one for each configuration."""
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml")
    ids = []
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        (tmp_path / name).mkdir()
        tracker = build(plain(node), "tracking", announce=pytest.fail)
        engine = {"_target_": "harness.sim.engine.SimEngine"}
        tracker.start({"seed": seed, "engine": engine}, name, tmp_path / name)
        tracker.finish(complete=False)
        (log,) = tmp_path.glob(f"{name}/wandb/offline-run-*/*.wandb")
        ids.append(log.parent.name.rpartition("-")[2])
        assert b"simulated run" in log.read_bytes()
    assert ids[0] == ids[1] != ids[2]


FIRST_SECOND = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from harness.configuration.config import build
from harness.configuration.options import CONF, plain
node = OmegaConf.load(CONF / "tracking" / "wandb.yaml")
tracker = build(plain(node), "tracking", announce=print)
tracker.start({"seed": 7}, "a run", Path(sys.argv[1]))
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
def test_wandb_gets_one_table_and_one_plot_of_a_sweep(tmp_path: Path) -> None:
    told: list[str] = []
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml")
    tracker = build(plain(node), "tracking", announce=told.append)
    rows = [{"scale.rate": rate, "run": f"run-{rate}", "ttft_s.mean": rate / 2} for rate in (1, 2)]
    tracker.sweep(rows, ["scale.rate"], "sweep-abc", tmp_path)
    assert told == []
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = log.read_bytes()
    assert b"sweep/table" in content
    assert b"sweep/ttft_mean_s" in content
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
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml")
    node.project = "no/slashes/allowed"
    tracker = build(plain(node), "tracking", announce=told.append)
    tracker.start({}, "a run", tmp_path)
    tracker.finish(complete=False)
    assert len(told) == 1
    assert told[0].startswith("W&B tracking stopped: ")


@pytest.mark.usefixtures("without_account")
def test_wandb_goes_online_only_with_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wandb_mode("auto") == "offline"
    assert wandb_mode("online") == "online"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password none\n")
    (tmp_path / "netrc").chmod(0o600)
    assert wandb_mode("auto") == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert wandb_mode("auto") == "online"
    assert wandb_mode("offline") == "offline"


def test_tracking_none_leaves_nothing(tmp_path: Path) -> None:
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "none.yaml")
    tracker = build(plain(node), "tracking", announce=print)
    tracker.start({}, "a run", tmp_path)
    tracker.finish(complete=False)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracking_mode_names_the_known_ones() -> None:
    node = OmegaConf.load(ROOT / "conf" / "tracking" / "wandb.yaml")
    node.mode = "sometimes"
    with pytest.raises(UsageError, match="auto, online, offline"):
        build(plain(node), "tracking", announce=print)
