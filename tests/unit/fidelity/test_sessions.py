"""Runs of one schedule of sessions, compared: hits request by request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from harness.errors import RunError, UsageError
from harness.fidelity import parity_runs, session_runs, sessions
from harness.fidelity.sessions import main
from harness.records.manifest import git_revision
from harness.records.run_folder import FinishedRun
from tests.running import run_here


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with a prefix cache, the same with blocks of another size, and one without sessions."""
    root = tmp_path_factory.mktemp("sessions")
    (root / "lengths.csv").write_text(
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n10,25,35,1\n70,9,79,1\n"
    )
    words = ("+system=vllm", "engine=sim", "figure=null", "+workload=sessions")
    path = f"workload.path={root}/lengths.csv"
    run_here(root / "one", *words, path)
    run_here(root / "other", *words, path, "engine.block_tokens=64")
    alone = ("+system=vllm", "engine=sim", "figure=null", "+workload=azure_code")
    run_here(root / "alone", *alone, "workload.num_requests=5")
    return {name: root / name for name in ("one", "other", "alone")}


def test_equal_hits_are_told_with_both_runs(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "parity.json"
    main([str(runs["one"]), str(runs["one"]), "--out", str(out), "--note", "quiet"], Console())
    found = json.loads(out.read_text())
    assert (found["num_requests"], found["requests_with_other_hits"]) == (2, 0)
    assert [row["later"]["cached_tokens"] for row in found["runs"]] == [32, 32]
    assert found["note"] == "quiet"
    assert found["git"] == git_revision()
    assert FinishedRun.load(runs["one"]).manifest["sessions"] == 1


def test_other_hits_end_with_their_number(runs: dict[str, Path], tmp_path: Path) -> None:
    words = [str(runs["one"]), str(runs["other"]), "--out", str(tmp_path / "x.json")]
    with pytest.raises(RunError, match="the prefix caches of 1 of 2 requests differ"):
        main(words, Console())


def test_the_whole_comparison_is_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The engine stands for a live one: it is simulated. Both runs have the same memory."""
    words = ("workload.num_sessions=3", "workload.rate_per_s=1", "workload.scale_tokens=0.1")
    monkeypatch.setitem(session_runs.LOADS, "torch", words)
    monkeypatch.setattr(sessions, "RUNS", tmp_path)
    calibrated: list[str] = []
    monkeypatch.setattr(session_runs, "profile", lambda *words: calibrated.extend(words))
    run = parity_runs.run

    def simulated(words: Sequence[str], run_dir: Path, engine: str) -> FinishedRun:
        return run([word for word in words if "threads" not in word], run_dir, "sim")

    for module in (session_runs, parity_runs):
        monkeypatch.setattr(module, "run", simulated)
    main(["--engine", "torch"], Console(width=120))
    assert calibrated == ["torch", "tiny-llama"]
    found = json.loads((tmp_path / "torch.json").read_text())
    assert (len(found["runs"]), found["requests_with_other_hits"]) == (2, 0)
    assert all("engine.num_kv_blocks=8192" in row["overrides"] for row in found["runs"])
    assert found["calibration"]["measured"], "what the simulation was told of the machine"
    said = capsys.readouterr().out
    assert said.count("(+0%)") == 2, "of first and of later turns"
    assert "equal hits of all" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --engine, or the folders"),
        (["--engine", "torch", "run"], "give --engine, or the folders"),
        (["run", "run"], "--out FILE is missing"),
    ],
)
def test_either_an_engine_or_runs_are_given(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(words, Console())


def test_one_run_has_nothing_to_agree_with(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give two or more"):
        main([str(runs["one"]), "--out", str(tmp_path / "x.json")], Console())


def test_runs_without_sessions_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no run of sessions"):
        main([str(runs["alone"]), "--out", str(tmp_path / "x.json")], Console())
    assert not (tmp_path / "x.json").exists()
