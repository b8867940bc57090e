"""How far the runs of figures are, and the time left: a bar on a terminal, a plain line now and
then anywhere else.

Drawn where a run ends and nowhere else: a run on a real engine has no thread beside it. The time
left comes from the rate of the last minutes and does not know that live runs take longer.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_LINE_S = 30.0
RATE_WINDOW_S = 300.0


class RunsProgress:
    """Counts runs on stderr while entered. `done` may be called by any thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            MofNCompleteColumn(), TextColumn("runs"), BarColumn(), TimeRemainingColumn(),
            TextColumn("left"), console=self._console, auto_refresh=False,
            speed_estimate_period=RATE_WINDOW_S, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=0)
        self._told_s = time.monotonic()

    def __enter__(self) -> RunsProgress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def more(self, num_runs: int) -> None:
        """So many are to be made besides."""
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + num_runs)

    def done(self, _: object = None) -> None:
        """One has ended, whatever came of it: a future's callback."""
        self._bar.advance(self._task)
        if self._console.is_terminal:
            self._bar.refresh()
        elif time.monotonic() - self._told_s >= PLAIN_LINE_S:
            self._told_s = time.monotonic()
            self.tell(self.line())

    def tell(self, line: str) -> None:
        """A line above the bar."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def line(self) -> str:
        task = self._bar.tasks[0]
        left = "" if task.time_remaining is None else f", {task.time_remaining:.0f} s left"
        return f"{task.completed:.0f} of {task.total:.0f} runs{left}"
