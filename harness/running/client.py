"""The open-loop player: sends each request at its scheduled time, whatever the system does.

It never waits for an answer before the next arrival, and stamps when it really sent, so that
its own lag is measured. Knows nothing of how requests are served.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from harness.clock import Event, Loop
from harness.records.record import Recorder
from harness.request import Request
from harness.running.client_config import ClientConfig
from harness.system import System


class Client:
    Config: ClassVar = ClientConfig

    def __init__(
        self, config: ClientConfig, *, loop: Loop, recorder: Recorder, system: System
    ) -> None:
        self._drain_s = config.drain_s
        self._loop, self._recorder, self._system = loop, recorder, system

    async def play(self, requests: Sequence[Request]) -> None:
        """Sends `requests` (ordered by arrival) and returns when each has ended.

        What has not ended `drain_s` after the last arrival is recorded as timed out.
        """
        loop, recorder = self._loop, self._recorder
        all_done = Event(loop)
        left = {request.request_id for request in requests}

        def on_done(request: Request) -> None:
            left.discard(request.request_id)
            if not left:
                all_done.set()

        recorder.on_done.append(on_done)
        for request in requests:
            if request.arrival_s > loop.now:
                await loop.sleep_until(request.arrival_s)
            recorder.sent(request, loop.now)
            self._system.submit(request)
        await loop.wait(all_done, until=requests[-1].arrival_s + self._drain_s)
        for request in requests:
            if request.request_id in left:
                after = f"not finished {self._drain_s:g} s after the last arrival"
                recorder.failed(request, after, timeout=True)
