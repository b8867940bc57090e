"""What all players share, and the open-loop one: it sends each request at its scheduled time,
whatever the system does.

It never waits for an answer before the next arrival, and stamps when it really sent, so that
its own lag is measured. Knows nothing of how requests are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.records.record import Recorder
from harness.request import Request


class Server(Protocol):
    def submit(self, request: Request) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Player:
    """Sends requests to `system` and knows which are in flight; `drain_s`: how long the last are
    waited for."""

    def __init__(self, drain_s: float, *, loop: Loop, recorder: Recorder, system: Server) -> None:
        self._drain_s = drain_s
        self._loop, self._recorder, self._system = loop, recorder, system
        self._in_flight: dict[int, Request] = {}  # by request_id
        self._ended = Event(loop)  # one in flight has

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests` and returns when each has ended."""
        raise NotImplementedError

    def _send(self, request: Request) -> None:
        self._in_flight[request.request_id] = request
        self._recorder.sent(request, self._loop.now)
        self._system.submit(request)

    def _on_done(self, request: Request) -> None:
        if self._in_flight.pop(request.request_id, None) is not None:
            self._ended.set()

    def _time_out(self, after: str) -> None:
        """Records those in flight as timed out."""
        for request in [*self._in_flight.values()]:
            self._recorder.failed(request, after, timeout=True)


class Client(Player):
    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests` (ordered by arrival) and returns when each has ended.

        What has not ended `drain_s` after the last arrival is recorded as timed out.
        """
        loop = self._loop
        self._recorder.on_done.append(self._on_done)
        for request in requests:
            if request.arrival_s > loop.now:
                await loop.sleep_until(request.arrival_s)
            self._send(request)
        until_s = requests[-1].arrival_s + self._drain_s
        while self._in_flight:
            self._ended.clear()
            if not await loop.wait(self._ended, until=until_s):
                self._time_out(f"not finished {self._drain_s:g} s after the last arrival")
