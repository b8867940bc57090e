"""The closed-loop player: so many requests in flight, and the end of each sends the next.

A slow system is asked for less, so latencies under a closed loop do not show what users who do not
wait for each other would see. Tables and figures therefore say "closed loop". The arrival times of
the schedule are not used: a request arrives when it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.records.closed_loop import CLOSED_LOOP
from harness.request import Request
from harness.running.client import Player


class ClosedLoop(Player):
    """`concurrency` ≥ 1 requests in flight."""

    def __init__(self, concurrency: int, drain_s: float, **parts: Any) -> None:
        super().__init__(drain_s, **parts)
        self._concurrency = concurrency

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests` in their order and returns when each has ended.

        Where none ends for `drain_s`, those in flight are recorded as timed out, and the others are
        never sent.
        """
        loop, recorder = self._loop, self._recorder
        recorder.event(CLOSED_LOOP, "client", 0.0, 0.0, concurrency=self._concurrency)
        recorder.on_done.append(self._on_done)
        for index, request in enumerate(requests):
            if not await self._below(self._concurrency):
                for unsent in requests[index:]:
                    unsent.arrival_s = loop.now
                break
            # The next is sent here and not in on_done, which a system calls in its own work.
            request.arrival_s = loop.now
            self._send(request)
        await self._below(1)
        self._time_out(f"no request ended for {self._drain_s:g} s (client.drain_s)")

    async def _below(self, limit: int) -> bool:
        """False: as many as `limit` are in flight, and none ended in time."""
        while len(self._in_flight) >= limit:
            self._ended.clear()
            if not await self._loop.wait(self._ended, until=self._loop.now + self._drain_s):
                return False
        return True
