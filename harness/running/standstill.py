"""Ends a simulated run in which nothing will happen any more.

Where tasks wait for each other, the loop still has timers: those of the display, of monitors, and
of the client, which waits for `client.drain_s`. Ten days in which requests are under way, and none
gets a token, ends or arrives, are longer than any load, and than the longest run of decodes, whose
tokens come together. A live run ends with `client.drain_s`.
"""

from __future__ import annotations

from collections import Counter

from harness.clock import Loop
from harness.errors import RunError
from harness.records.record import Recorder

LONGEST_S = 10 * 86_400.0


class Standstill:
    def __init__(self, recorder: Recorder, loop: Loop) -> None:
        self._recorder, self._loop = recorder, loop
        self._since_s = 0.0
        self._then: tuple[int, int, int] | None = None

    def look(self, now_s: float) -> None:
        """Raises RunError where nothing has happened for so long, and says what waits."""
        recorder = self._recorder
        now = recorder.num_tokens, recorder.num_done, recorder.num_sent
        if now != self._then or recorder.num_done == recorder.num_sent:
            self._since_s, self._then = now_s, now
        elif now_s - self._since_s > LONGEST_S:
            waiting = Counter(self._loop.tasks())
            raise RunError(
                f"nothing has happened for ten days of simulated time, since {self._since_s:.0f} "
                f"s: {recorder.num_sent - recorder.num_done} requests are under way, and none gets "
                f"a token; tasks that wait: {', '.join(map(counted, sorted(waiting.items())))}"
            )


def counted(task: tuple[str, int]) -> str:
    name, count = task
    return name if count == 1 else f"{name} ({count})"
