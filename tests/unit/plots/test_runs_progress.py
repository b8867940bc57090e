"""Runs of figures are counted, with the time left, as they end."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from harness.experiments import figure_progress
from harness.experiments.figure_progress import RunsProgress, run_s, told_run_s
from harness.experiments.points import Point


def test_a_log_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_progress, "PLAIN_LINE_S", 0.0)
    said = io.StringIO()
    with RunsProgress(console=Console(file=said, width=80)) as runs:
        runs.more("one", 2)
        runs.more("other", 1)
        runs.done("one")
        runs.done("one")
        runs.tell("a [figure] is drawn")
    lines = said.getvalue().splitlines()
    assert lines[0].startswith("1 of 3 runs")
    assert lines[1].startswith("2 of 3 runs, ")
    assert lines[1].endswith(" s left")
    assert lines[2:] == ["a [figure] is drawn"]


def test_a_terminal_has_a_bar() -> None:
    said = io.StringIO()
    with RunsProgress(console=Console(file=said, force_terminal=True, width=80)) as runs:
        runs.more("one", 1370)
        runs.done("one")
        during = said.getvalue()
    assert "1 of 1370 runs" in during.replace("\x1b[32m", "").replace("\x1b[0m", "")


def test_runs_count_for_as_long_as_they_took_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten short simulated runs, two at a time, then a live one as long as all of them."""
    now_s = 0.0
    made = partial(Progress, get_time=lambda: now_s)
    monkeypatch.setattr(figure_progress, "Progress", made)
    runs = RunsProgress({"short": 1.0, "live": 5.0}, Console(quiet=True))
    runs.more("short", 10, beside=2)
    runs.more("live", 1)
    for _ in range(10):
        now_s += 1.5  # a machine that takes three times as long
        runs.done("short", beside=2)
    assert runs.line() == "10 of 11 runs, 15 s left"


def test_a_figure_tells_how_long_its_runs_took(tmp_path: Path) -> None:
    points = []
    for number, seconds in enumerate((1.0, 2.5)):
        folder = tmp_path / str(number)
        folder.mkdir()
        times = {"started_utc": "2026-11-24T00:00:00.000+00:00"}
        times["ended_utc"] = f"2026-11-24T00:00:0{seconds:.3f}+00:00"
        (folder / "manifest.json").write_text(json.dumps(times))
        points.append(Point("made", {}, 0, folder, ""))
    points.append(Point("made", {}, 0, None, "refused"))
    told = tmp_path / "figure.json"
    told.write_text(json.dumps({"run_s": run_s(points)}))
    assert told_run_s([told, tmp_path / "not_drawn_yet.json"]) == {"made": 1.75}
