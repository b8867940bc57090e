"""The closed-loop client on both clocks, and what the verdict says of what it kept in flight."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import Event, Loop, VirtualLoop, WallLoop
from harness.records.closed_loop import CLOSED_LOOP, kept
from harness.records.evidence import Evidence
from harness.records.record import Recorder, Segment
from harness.records.tables import requests_table
from harness.records.token_log import TokenLog
from harness.records.verdict import rules
from harness.request import Request
from harness.running.closed_loop import ClosedLoop
from tests.unit.metrics.service import Service


class Timed:
    """Answers request i after service_s[i], with one token; never where that is None."""

    def __init__(self, loop: Loop, recorder: Recorder, service_s: list[float | None]) -> None:
        self._loop, self._recorder, self._service_s = loop, recorder, service_s
        self.in_flight = self.most_in_flight = 0

    def submit(self, request: Request) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        service_s = self._service_s[request.request_id]
        if service_s is not None:
            self._loop.spawn(self._answer(request, service_s), name=f"{request.request_id}")

    async def _answer(self, request: Request, service_s: float) -> None:
        await self._loop.sleep(service_s)
        self._recorder.segment([request], Segment(self._loop.now, 1, 0.0, 0.0), "a")
        self.in_flight -= 1
        self._recorder.completed(request)

    async def serve(self) -> None:
        await self._loop.wait(Event(self._loop))


def played(
    loop: Loop, concurrency: int, service_s: list[float | None], drain_s: float = 100.0
) -> tuple[Recorder, Timed]:
    requests = [Request(i, 1000.0 * i, "m", 5, 1) for i in range(len(service_s))]
    recorder = Recorder(requests)
    system = Timed(loop, recorder, service_s)
    client = ClosedLoop(concurrency, drain_s, loop=loop, recorder=recorder, system=system)
    loop.run(client.play(requests))
    return recorder, system


def sent_by_hand(concurrency: int, service_s: list[float]) -> list[float]:
    """When each is sent: at the earliest end of the `concurrency` before it that are under way."""
    ends: list[float] = []
    sent = []
    for service in service_s:
        at = 0.0
        if len(ends) >= concurrency:
            ends.sort()
            at = ends.pop(0)
        sent.append(at)
        ends.append(at + service)
    return sent


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 8))
def test_in_virtual_time_the_concurrency_is_exact(service: list[int], concurrency: int) -> None:
    service_s = [float(each) for each in service]
    recorder, system = played(VirtualLoop(), concurrency, [*service_s])
    records = recorder.records.values()
    assert [record.sent_s for record in records] == sent_by_hand(concurrency, service_s)
    assert [record.request.arrival_s for record in records] == [r.sent_s for r in records]
    assert system.most_in_flight == min(concurrency, len(service))
    found = kept(TokenLog.from_table(requests_table(recorder)), concurrency)
    if found.mean_in_flight is not None:
        assert found.mean_in_flight == pytest.approx(concurrency)
        assert found.late_s == pytest.approx(0.0, abs=1e-9)


def test_on_a_wall_clock_no_more_are_in_flight_and_all_end() -> None:
    recorder, system = played(WallLoop(), 3, [0.002] * 20)
    assert system.most_in_flight == 3
    assert recorder.num_done == 20


def test_where_nothing_ends_any_more_those_in_flight_time_out() -> None:
    recorder, _ = played(VirtualLoop(), 2, [1.0, None, None, 1.0, 1.0], drain_s=10.0)
    status = [record.status for record in recorder.records.values()]
    assert status == ["completed", "timeout", "timeout", "scheduled", "scheduled"]
    assert "client.drain_s" in recorder.records[1].error
    assert recorder.records[4].request.arrival_s == 11.0


def closed(service: Service, concurrency: int) -> Service:
    service.recorder.event(CLOSED_LOOP, "client", 0.0, 0.0, concurrency=concurrency)
    return service


def one_after_another(gap_s: float) -> Service:
    service = Service(*(((0.1 + gap_s) * i, 1) for i in range(100)))
    for i, request in enumerate(service.requests):
        service.complete(i, request.arrival_s + 0.1)
    return closed(service, 1)


def test_a_kept_concurrency_is_valid_and_no_rate_is_asked() -> None:
    summary = one_after_another(0.001).summary()
    assert summary["verdict"]["status"] == "VALID"
    assert summary["asked_rate_per_s"] is None
    assert summary["closed_loop"]["late_s"] == pytest.approx(0.001)


def test_a_client_that_leaves_gaps_is_invalid() -> None:
    [reason] = one_after_another(0.02).summary()["verdict"]["reasons"]
    assert reason.startswith("the closed loop kept 0.83")
    assert "20.0 ms late" in reason


def test_the_rule_of_the_rate_does_not_apply() -> None:
    service = one_after_another(0.0)
    table, events = service.table(), service.recorder.events
    by_name = {each.name: each for each in rules(Evidence.of(table, events, simulated=True))}
    assert not by_name["asked rate"].applies
    assert by_name["concurrency kept"].applies
    opened = {each.name: each for each in rules(Evidence.of(table, [], simulated=True))}
    assert opened["asked rate"].applies
    assert not opened["concurrency kept"].applies


def test_what_the_log_cannot_tell_is_said() -> None:
    few = closed(Service((0.0, 1)), 4)
    few.complete(0, 1.0)
    assert few.summary()["closed_loop"]["reason"].startswith("no more requests")
    failing = closed(Service((0.0, 1), (1.0, 1)), 1)
    failing.send(0)
    failing.fail(0)
    failing.complete(1, 2.0)
    assert failing.summary()["closed_loop"]["mean_in_flight"] is None
