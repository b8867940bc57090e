"""The closed-loop player: so many requests in flight, and the end of each sends the next.

A slow system is asked for less, so latencies under a closed loop do not show what users who do not
wait for each other would see. Tables and figures therefore say "closed loop". The arrival times of
the schedule are not used: a request arrives when it is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.clock import Event, Loop
from harness.records.closed_loop import CLOSED_LOOP
from harness.records.record import Recorder
from harness.request import Request


class Server(Protocol):
    def submit(self, request: Request) -> None: ...


class ClosedLoop:
    """`concurrency` ≥ 1 requests in flight."""

    def __init__(
        self, concurrency: int, drain_s: float, *, loop: Loop, recorder: Recorder, system: Server
    ) -> None:
        self._concurrency, self._drain_s = concurrency, drain_s
        self._loop, self._recorder, self._system = loop, recorder, system

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests` in their order and returns when each has ended.

        Where none ends for `drain_s`, those in flight are recorded as timed out, and the others are
        never sent.
        """
        loop, recorder = self._loop, self._recorder
        recorder.event(CLOSED_LOOP, "client", 0.0, 0.0, concurrency=self._concurrency)
        in_flight: dict[int, Request] = {}
        ended = Event(loop)

        def on_done(request: Request) -> None:
            if in_flight.pop(request.request_id, None) is not None:
                ended.set()

        async def wait_below(limit: int) -> bool:
            """False: none ended in time."""
            while len(in_flight) >= limit:
                ended.clear()
                if not await loop.wait(ended, until=loop.now + self._drain_s):
                    return False
            return True

        recorder.on_done.append(on_done)
        for index, request in enumerate(requests):
            if not await wait_below(self._concurrency):
                for unsent in requests[index:]:
                    unsent.arrival_s = loop.now
                break
            # The next is sent here and not in on_done, which a system calls in its own work.
            request.arrival_s = loop.now
            in_flight[request.request_id] = request
            recorder.sent(request, loop.now)
            self._system.submit(request)
        await wait_below(1)
        for request in [*in_flight.values()]:
            after = f"no request ended for {self._drain_s:g} s (client.drain_s)"
            recorder.failed(request, after, timeout=True)
