"""How far the runs of figures are, and the time left: a bar on a terminal, a plain line now and
then anywhere else.

Drawn where a run ends and nowhere else: a run on a real engine has no thread beside it. A run of
one figure can take a hundred times as long as a run of another, so each counts for what those of
its experiment took when their figure was last drawn (`run_s` of FIGURE.json). How much faster or
slower this machine is shows as they end. Runs of a search count from when they are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from harness.experiments.points import Point
from harness.files import read_json

PLAIN_LINE_S = 30.0
RATE_WINDOW_S = 300.0


class RunsProgress:
    """Counts runs on stderr while entered. run_s: {experiment: seconds a run}, as far as known; of
    others the mean is taken. `done` may be called by any thread."""

    def __init__(
        self, run_s: Mapping[str, float] | None = None, console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._run_s = run_s or {}
        self._mean_s = fmean(self._run_s.values()) if self._run_s else 1.0
        self._num_done = self._num_runs = 0
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(),
            TextColumn("left"), console=self._console, auto_refresh=False,
            speed_estimate_period=RATE_WINDOW_S, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task(self._count(), total=0)
        self._told_s = time.monotonic()

    def __enter__(self) -> RunsProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def more(self, experiment: str, num_runs: int, beside: int = 1) -> None:
        """Adds runs that are to be made, `beside` of them at a time."""
        self._num_runs += num_runs
        more_s = num_runs * self._expected_s(experiment) / beside
        total_s = (self._bar.tasks[0].total or 0) + more_s
        self._bar.update(self._task, total=total_s, description=self._count())

    def done(self, experiment: str, beside: int = 1) -> None:
        """Counts a run that has ended, whatever came of it."""
        self._num_done += 1
        self._bar.advance(self._task, self._expected_s(experiment) / beside)
        self._bar.update(self._task, description=self._count())
        if self._console.is_terminal:
            self._bar.refresh()
        elif time.monotonic() - self._told_s >= PLAIN_LINE_S:
            self._told_s = time.monotonic()
            self.tell(self.line())

    def tell(self, line: str) -> None:
        """A line above the bar."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def line(self) -> str:
        left_s = self._bar.tasks[0].time_remaining
        return self._count() + ("" if left_s is None else f", {left_s:.0f} s left")

    def _count(self) -> str:
        return f"{self._num_done} of {self._num_runs} runs"

    def _expected_s(self, experiment: str) -> float:
        return self._run_s.get(experiment, self._mean_s)


def run_s(points: Iterable[Point]) -> dict[str, float]:
    """{experiment: wall seconds of one of its runs, the mean}."""
    seconds: dict[str, list[float]] = {}
    for point in points:
        if point.path is not None:
            manifest = point.manifest()
            started = datetime.fromisoformat(manifest["started_utc"])
            took = datetime.fromisoformat(manifest["ended_utc"]) - started
            seconds.setdefault(point.experiment, []).append(took.total_seconds())
    return {name: round(fmean(of_name), 3) for name, of_name in seconds.items()}


def told_run_s(figures: Iterable[Path]) -> dict[str, float]:
    """`run_s` as each FIGURE.json tells it; nothing of a figure that is not there yet."""
    told: dict[str, float] = {}
    for path in figures:
        if path.is_file():
            told |= read_json(path).get("run_s", {})
    return told
