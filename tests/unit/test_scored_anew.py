"""Another SLO is the same run, which starts no engine, unless the system reads the SLO."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from harness.errors import RunError, UsageError
from harness.experiments.compose import composed
from harness.files import read_json
from harness.records.journal import JOURNAL
from harness.records.run_folder import FinishedRun, RunFolder
from harness.records.sources import Identity
from harness.running import run as running
from harness.running.prepare import prepare
from harness.running.run import Command, obtain
from harness.running.tracking import Tracker

WORDS = (
    "+workload=azure_code", "engine=sim", "workload.num_requests=20", "tracking=none",
    "figure=null",
)  # fmt: skip
OF_VLLM = ("+system=vllm", *WORDS)
OF_AEGAEON = ("+system=aegaeon", *WORDS)


@dataclass(frozen=True, slots=True)
class Made:
    path: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]


def made(
    folder: Path,
    *words: str,
    said: list[str] | None = None,
    named: bool = False,
    tracker: Any = None,
) -> Made:
    """The run, as a command makes it in `folder`."""
    found = composed(words)
    parts = prepare(found.configured(()))
    if tracker is not None:
        parts.tracker = tracker
    command = Command(folder, named=named, choices=found.choices, overrides=words)
    told = said.append if said is not None else print
    path = obtain(parts, command, wait=False, announce=told).path
    return Made(path, *(read_json(path / name) for name in ("summary.json", "manifest.json")))


@pytest.fixture(autouse=True)
def hydra_of_its_own() -> Iterator[None]:
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def not_served(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and from then on nothing can serve."""
    return lambda: monkeypatch.setattr(running, "serve", None)


def test_another_slo_is_the_same_run_scored_as_if_it_had_run(
    tmp_path: Path, not_served: Callable[[], None]
) -> None:
    first = made(tmp_path / "a", *OF_VLLM, "slo.ttft_s=60")
    anew = made(tmp_path / "b", *OF_VLLM, "slo.ttft_s=1e-6")
    not_served()
    said: list[str] = []
    scored = made(tmp_path / "a", *OF_VLLM, "slo.ttft_s=1e-6", said=said)
    assert said == [f"scored for another SLO, and not served again: {first.path}"]
    assert scored.summary | {"wall_s": 0} == anew.summary | {"wall_s": 0}
    assert first.summary["slo_attainment"] != scored.summary["slo_attainment"]
    assert anew.path.name == first.path.name, "the SLO names no run"
    assert scored.path.name == f"{first.path.name}-slo-{anew.manifest['config_hash']}"
    assert scored.manifest["scored_from"] == first.path.name
    assert scored.manifest["served_hash"] == first.manifest["served_hash"]
    assert "slo.ttft_s=1e-6" in scored.manifest["overrides"]
    # the score of each SLO stays
    for words, path in (("slo.ttft_s=60", first.path), ("slo.ttft_s=1e-6", scored.path)):
        said.clear()
        made(tmp_path / "a", *OF_VLLM, words, said=said)
        assert said == [f"already run; again=true repeats it: {path}"]


def test_a_folder_that_is_named_has_the_slo_of_the_last_command(
    tmp_path: Path, not_served: Callable[[], None]
) -> None:
    folder = tmp_path / "run"
    first = made(folder, *OF_VLLM, "slo.ttft_s=60", named=True)
    (folder / "run.png").write_text("of the SLO before")
    not_served()
    for limit in ("1e-6", "60"):
        last = made(folder, *OF_VLLM, f"slo.ttft_s={limit}", named=True)
        assert last.summary["slo"]["ttft_s"] == float(limit)
        assert FinishedRun.load(folder).config["slo"]["ttft_s"] == float(limit)
    assert [*tmp_path.iterdir()] == [folder]
    assert last.summary == first.summary
    assert last.manifest == first.manifest
    assert not (folder / "run.png").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_score_that_was_killed_half_way_is_made_again(
    *, named: bool, tmp_path: Path, not_served: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(tmp_path / "run", *OF_VLLM, "slo.ttft_s=60", named=named)
    not_served()
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_summary", None)
        with pytest.raises(TypeError):
            made(tmp_path / "run", *OF_VLLM, "slo.ttft_s=1e-6", named=named)
    (half,) = (
        path.parent
        for path in (tmp_path / "run").glob("**/manifest.json")
        if named or "-slo-" in path.parent.name
    )
    with pytest.raises(UsageError, match="is not a complete run's folder"):
        FinishedRun.load(half)
    for limit in ("1e-6", "60"):
        last = made(tmp_path / "run", *OF_VLLM, f"slo.ttft_s={limit}", named=named)
        assert last.summary["slo"]["ttft_s"] == float(limit)
    assert last.summary == first.summary


def test_scores_of_a_run_that_is_made_again_are_made_again(tmp_path: Path) -> None:
    made(tmp_path, *OF_VLLM)
    made(tmp_path, *OF_VLLM, "slo.ttft_s=60")
    made(tmp_path, *OF_VLLM, "again=true")
    said: list[str] = []
    again = made(tmp_path, *OF_VLLM, "slo.ttft_s=60", said=said)
    assert said[0].startswith("scored for another SLO")
    (run,) = (path for path in tmp_path.iterdir() if "-slo-" not in path.name)
    assert again.manifest["started_utc"] == read_json(run / "manifest.json")["started_utc"]


def test_a_disk_that_is_full_is_told_and_the_score_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, *OF_VLLM)

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", full)
        with pytest.raises(RunError, match=r"cannot write .*parquet: No space left on device"):
            made(tmp_path, *OF_VLLM, "slo.ttft_s=60")
    (half,) = tmp_path.glob("*-slo-*")
    assert not [*half.glob("*.partial*")]
    assert "scored_from" in made(tmp_path, *OF_VLLM, "slo.ttft_s=60").manifest


def test_a_score_has_nothing_of_what_its_folder_held(tmp_path: Path) -> None:
    """As an aborted run for that SLO leaves, whose journal would say that it is under way."""
    scored = made(tmp_path, *OF_VLLM).path, made(tmp_path, *OF_VLLM, "slo.ttft_s=60").path
    (scored[1] / "manifest.json").write_text(json.dumps({"status": "aborted"}))
    for name in (JOURNAL, "gpu.parquet"):
        (scored[1] / name).write_text("of another")
    assert made(tmp_path, *OF_VLLM, "slo.ttft_s=60").path == scored[1]
    assert FinishedRun.load(scored[1]).manifest["scored_from"] == scored[0].name
    assert not (scored[1] / "gpu.parquet").exists()


def test_again_for_another_slo_leaves_the_run_of_the_first(
    tmp_path: Path, not_served: Callable[[], None]
) -> None:
    points = [("slo.ttft_s=60", 60), ("slo.ttft_s=1e-6", 1e-6), ("slo.ttft_s=5", 5)]
    made(tmp_path, *OF_VLLM, "slo.ttft_s=1e-6")
    for _ in range(2):  # the second time all folders are there
        served = [made(tmp_path, *OF_VLLM, word, "again=true") for word, _ in points]
        assert len({run.path for run in served}) == 3
        assert not any("scored_from" in run.manifest for run in served)
    not_served()
    for run, (word, limit) in zip(served, points, strict=True):
        assert read_json(run.path / "summary.json")["slo"]["ttft_s"] == limit
        assert FinishedRun.load(run.path).config["slo"]["ttft_s"] == limit
        said: list[str] = []
        assert made(tmp_path, *OF_VLLM, word, said=said).manifest == run.manifest
        assert said == [f"already run; again=true repeats it: {run.path}"]
    assert ["-slo-" in run.path.name for run in served] == [True, False, True]


def test_what_was_served_beside_an_aborted_run_is_not_served_again(
    tmp_path: Path, not_served: Callable[[], None]
) -> None:
    first = made(tmp_path, *OF_VLLM)
    other = made(tmp_path, *OF_VLLM, "slo.ttft_s=60", "again=true")
    (first.path / "summary.json").unlink()
    aborted = json.dumps(first.manifest | {"status": "aborted"})
    (first.path / "manifest.json").write_text(aborted)
    not_served()
    assert made(tmp_path, *OF_VLLM, "slo.ttft_s=60").path == other.path


def test_a_score_of_a_run_that_is_gone_is_not_of_other_sources(tmp_path: Path) -> None:
    first = made(tmp_path, *OF_VLLM)
    scored = made(tmp_path, *OF_VLLM, "slo.ttft_s=60")
    shutil.rmtree(first.path)
    said: list[str] = []
    made(tmp_path, *OF_VLLM, said=said)
    assert said == []
    shutil.rmtree(first.path)
    sources = scored.manifest["sources"] | {"harness/clock.py": "another"}
    (scored.path / "manifest.json").write_text(json.dumps(scored.manifest | {"sources": sources}))
    made(tmp_path, *OF_VLLM, said=said)
    assert said == [
        f"run again: {scored.path} is of other sources, changed since: harness/clock.py"
    ]


def test_the_tracker_gets_one_run_whatever_the_slo(tmp_path: Path) -> None:
    told: list[tuple[str, Path, bool]] = []

    class Listening(Tracker):
        def start(self, config: Any, manifest: Mapping[str, Any], run_dir: Path) -> None:
            told.append(
                (str(Identity(manifest["served_hash"], manifest["sources"])), run_dir, False)
            )

        def finish(self, *, complete: bool) -> None:
            told[-1] = (*told[-1][:2], complete)

    listening = Listening(None, announce=print)
    found = [
        made(tmp_path, *OF_VLLM, f"slo.ttft_s={limit}", tracker=listening) for limit in (60, 1e-6)
    ]
    name = str(Identity(found[0].manifest["served_hash"], found[0].manifest["sources"]))
    assert told == [(name, run.path, True) for run in found]


def test_a_system_that_reads_its_slo_runs_again(tmp_path: Path) -> None:
    made(tmp_path, *OF_AEGAEON)
    other_ttft = made(tmp_path, *OF_AEGAEON, "slo.ttft_s=60")
    other_tbt = made(tmp_path, *OF_AEGAEON, "slo.tbt_s=60")
    assert "scored_from" in other_ttft.manifest
    assert "scored_from" not in other_tbt.manifest


@pytest.mark.parametrize("word", ["seed=1", "again=true", "system.max_num_seqs=4"])
def test_what_is_served_otherwise_runs(word: str, tmp_path: Path) -> None:
    made(tmp_path, *OF_VLLM)
    assert "scored_from" not in made(tmp_path, *OF_VLLM, "slo.ttft_s=60", word).manifest


def test_an_invalid_live_run_is_made_again_for_whatever_slo_and_stays(
    tmp_path: Path, not_served: Callable[[], None]
) -> None:
    run = made(tmp_path, *OF_VLLM)
    run.summary["verdict"] = {"status": "INVALID", "reasons": ["made up"]}
    (run.path / "summary.json").write_text(json.dumps(run.summary))
    (run.path / "manifest.json").write_text(json.dumps(run.manifest | {"simulated": False}))
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    said: list[str] = []
    again = made(tmp_path, *OF_VLLM, "slo.ttft_s=60", said=said)
    assert said == ["run again: it was INVALID: made up"]
    assert "scored_from" not in again.manifest
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    not_served()
    assert made(tmp_path, *OF_VLLM, "slo.ttft_s=60", said=said).path == again.path
    assert said[1:] == [f"already run; again=true repeats it: {again.path}"]
    with pytest.raises(TypeError):  # it serves
        made(tmp_path, *OF_VLLM, said=said)
    assert said[2:] == ["run again: it was INVALID: made up"]
