"""Runs of figures are counted, with the time left, as they end."""

from __future__ import annotations

import io
from concurrent.futures import Future

import pytest
from rich.console import Console

from harness.experiments import figure_progress
from harness.experiments.figure_progress import RunsProgress


def test_a_log_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_progress, "PLAIN_LINE_S", 0.0)
    said = io.StringIO()
    with RunsProgress(Console(file=said, width=80)) as runs:
        runs.more(2)
        runs.more(1)
        future: Future[None] = Future()
        future.add_done_callback(runs.done)
        future.set_exception(RuntimeError("it failed"))
        runs.done()
        runs.tell("a [figure] is drawn")
    lines = said.getvalue().splitlines()
    assert lines[0].startswith("1 of 3 runs")
    assert lines[1].startswith("2 of 3 runs, ")
    assert lines[1].endswith(" s left")
    assert lines[2:] == ["a [figure] is drawn"]


def test_a_terminal_has_a_bar() -> None:
    said = io.StringIO()
    with RunsProgress(Console(file=said, force_terminal=True, width=80)) as runs:
        runs.more(1370)
        runs.done()
        during = said.getvalue()
    assert "1/1370 runs" in during.replace("\x1b[32m", "").replace("\x1b[0m", "")
