"""A simulated run in which nothing will happen any more ends, and says what waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.clock import Event, Loop, VirtualLoop
from harness.errors import RunError
from harness.records.record import Recorder, Segment
from harness.request import Request
from harness.running import serve, standstill
from harness.running.standstill import LONGEST_S, Standstill
from tests.running import run_here


class Silent:
    """A system that answers nobody."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def submit(self, request: Request) -> None:
        pass

    async def serve(self) -> None:
        await self._loop.wait(Event(self._loop))


def test_a_run_that_nobody_serves_ends_before_its_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_system", lambda parts, loop, cluster: Silent(loop))
    monkeypatch.setattr(standstill, "LONGEST_S", 1e4)  # ten days take seconds
    with pytest.raises(RunError, match=r"5 requests are under way.*: main, progress, system\n"):
        run_here(
            tmp_path / "run", "+system=vllm", "+workload=burstgpt", "engine=sim",
            "workload.num_requests=5", "client.drain_s=1e9",
        )  # fmt: skip


def test_only_requests_under_way_that_get_nothing_are_a_standstill() -> None:
    request, other = Request(0, 0.0, "m", 1, 5), Request(1, 3 * LONGEST_S, "m", 1, 1)
    recorder = Recorder([request, other])
    found = Standstill(recorder, VirtualLoop())
    recorder.sent(request, 0.0)
    found.look(0.0)
    found.look(0.9 * LONGEST_S)
    recorder.segment([request], Segment(0.0, 5, 1.0, 0.0), "one")
    found.look(1.1 * LONGEST_S)
    found.look(2.0 * LONGEST_S)
    recorder.completed(request)  # nobody is under way before the next one arrives
    found.look(5.0 * LONGEST_S)
    recorder.sent(other, 5.0 * LONGEST_S)
    found.look(5.5 * LONGEST_S)
    found.look(6.4 * LONGEST_S)
    with pytest.raises(RunError, match="1 requests are under way"):
        found.look(6.6 * LONGEST_S)
