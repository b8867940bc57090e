"""How a run is getting on: a bar on a terminal, a plain line now and then anywhere else.

Reads the recorder's counters and nothing else; drawing happens inside `update`, so no thread
competes with the client for time.
"""

from __future__ import annotations

import time
from collections import deque

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.records.record import Recorder

REDRAW_S = 0.1
PLAIN_LINE_S = 10.0
RATE_WINDOW_S = 1.0


class Rates:
    """How fast counters grew in the last `window_s` of the loop's time."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()

    def look(self, now_s: float, *counts: int) -> None:
        self._seen.append((now_s, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()

    def per_s(self) -> list[float]:
        """The rate of each counter, after one look at least."""
        (then_s, before), (now_s, after) = self._seen[0], self._seen[-1]
        took_s = now_s - then_s
        return [(b - a) / took_s if took_s > 0 else 0.0 for a, b in zip(before, after, strict=True)]


class ProgressBar:
    """Shows progress on stderr while entered; `update` as often as you like."""

    def __init__(self, num_requests: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._num_requests = num_requests
        self._interval_s = REDRAW_S if self._console.is_terminal else PLAIN_LINE_S
        self._drawn_s = time.monotonic()
        self._tokens = Rates(RATE_WINDOW_S)
        self._tokens.look(0.0, 0)
        self._bar = Progress(
            TextColumn("{task.completed}/{task.total} done"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=num_requests)

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, recorder: Recorder, now_s: float) -> None:
        """`now_s` is the loop's time: in a simulation tokens/s are simulated tokens per
        simulated second."""
        self._tokens.look(now_s, recorder.num_tokens)
        monotonic_s = time.monotonic()
        if monotonic_s - self._drawn_s < self._interval_s:
            return
        self._drawn_s = monotonic_s
        text = f"{counts(recorder)}, {self._tokens.per_s()[0]:,.0f} tokens/s"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=recorder.num_done, description=text)
            self._bar.refresh()
        else:
            done = f"{recorder.num_done}/{self._num_requests} done"
            self._console.print(f"{done}, {text}, at {now_s:.0f} s", highlight=False)


def counts(recorder: Recorder) -> str:
    """How many requests are being served now, wait for it, and failed."""
    text = f"{recorder.num_running} running, {recorder.num_queued} queued"
    return f"{text}, {recorder.num_failed} failed" if recorder.num_failed else text
