"""What the heartbeat of the client's I/O thread says of stamps, and what the verdict makes of
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.records.certificate import EVENT
from harness.records.receive_lag import lag_at, receive_lag
from harness.records.token_log import TokenLog
from tests.unit.metrics.service import Service

BEAT_S = 0.002


def beating(
    service: Service,
    *stalls: tuple[float, float],
    cpu_wait_s: float | None = None,
    stamped_by: str = "client",
    num_readers: int = 1,
) -> Service:
    """With a heartbeat over 100 s and stalls, each (start, seconds), and a certificate."""
    service.recorder.event(EVENT, "client", 0.0, 0.0, measured_utc="2026-11-27", limit_ms=5.0)
    service.recorder.event(
        "heartbeat", "client", 0.0, 100.0,
        beat_s=BEAT_S, cpu_wait_s=cpu_wait_s, stamped_by=stamped_by, num_readers=num_readers,
    )  # fmt: skip
    for start_s, seconds in stalls:
        service.recorder.event("stall", "client", start_s, start_s + seconds)
    return service


def served(num_requests: int, spacing_s: float = 0.1, ttft_s: float = 0.05) -> Service:
    service = Service(*((i * spacing_s, 3) for i in range(num_requests)))
    for i in range(num_requests):
        first_s = i * spacing_s + ttft_s
        service.complete(i, first_s, first_s + 0.02, first_s + 0.04)
    return service


def verdict(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = service.summary()["verdict"]
    return found


def test_a_stamp_may_be_as_late_as_the_stall_that_it_is_in_or_just_after() -> None:
    due_s, came_s = np.array([1.0, 1.052]), np.array([1.05, 1.06])
    times_s = np.array([0.99, 1.0, 1.03, 1.05, 1.053, 1.0539, 1.062, 1.07])
    assert lag_at(times_s, due_s, came_s, BEAT_S) == pytest.approx(
        [0.0, 0.0, 0.03, 0.05, 0.05, 0.05, 0.008, 0.0]
    )
    assert lag_at(times_s, np.empty(0), np.empty(0), BEAT_S).tolist() == [0.0] * 8


def test_what_is_read_in_one_stall_may_have_come_in_the_one_before() -> None:
    began_s, came_s = np.array([1.0, 1.01, 1.02]), np.array([1.01, 1.02, 1.03])
    times_s = np.array([1.005, 1.018, 1.0299, 1.031])
    assert lag_at(times_s, began_s, came_s, BEAT_S) == pytest.approx([0.005, 0.018, 0.0199, 0.01])


def test_a_run_without_sockets_has_no_receive_lag() -> None:
    service = served(3)
    assert receive_lag(TokenLog.from_table(service.table()), service.recorder.events) is None
    assert "receive_lag_s" not in service.summary()


def test_a_quiet_heart_makes_a_valid_run() -> None:
    service = beating(served(100))
    assert verdict(service) == {"status": "VALID", "reasons": []}
    assert service.summary()["receive_lag_s"] == {
        "p99": 0.0, "max": 0.0, "tokens_p99": 0.0, "tokens_max": 0.0, "with_send_p99": 0.0,
        "cpu_wait": None, "stamped_by": "client",
    }  # fmt: skip


def test_calm_sends_and_then_a_storm_that_is_read_late_is_invalid() -> None:
    # Sends in time over 10 s; all tokens come within a second in which stalls are 30 ms.
    service = Service(*((i * 0.01, 2) for i in range(1000)))
    for i in range(1000):
        service.complete(i, 12.0 + i * 0.001, 12.02 + i * 0.001)
    stalls = [(12.0 + i * 0.04, 0.03) for i in range(30)]
    found = verdict(beating(service, *stalls))
    assert found["status"] == "INVALID"
    (reason,) = found["reasons"]
    assert "P99 receive lag over tokens 3" in reason
    assert "first tokens together 3" in reason
    assert "over the run" not in reason  # most of it was calm


def test_one_long_stall_where_few_tokens_came_is_told_but_leaves_the_run_valid() -> None:
    found = verdict(beating(served(1000), (5.0, 0.04)))
    assert found["status"] == "VALID"
    (note,) = found["notes"]
    assert "read nothing for 40 ms" in note


def test_a_loop_that_is_late_for_more_than_a_hundredth_of_its_beats_is_invalid() -> None:
    stalls = [(20.0 + i * 0.01, 0.006) for i in range(600)]
    found = verdict(beating(served(400), *stalls))
    assert any("P99 receive lag over the run 6.0 ms" in reason for reason in found["reasons"])


def test_send_lag_and_receive_lag_count_together() -> None:
    service = Service(*((i * 0.1, 1) for i in range(100)))
    for i in range(100):
        service.complete(i, i * 0.1 + 0.05, lag_s=0.004)
    stalls = [(i * 0.1 + 0.047, 0.0031) for i in range(100)]
    (reason,) = verdict(beating(service, *stalls))["reasons"]
    assert "P99 of send and receive lag of first tokens together 7.0 ms" in reason


def test_a_late_client_says_how_long_it_had_no_core() -> None:
    stalls = [(20.0 + i * 0.01, 0.006) for i in range(600)]
    (reason,) = verdict(beating(served(400), *stalls, cpu_wait_s=2.5))["reasons"]
    assert reason.endswith("(limit 5 ms); its thread waited 2.5 s for a core")


def test_stalls_after_the_last_token_are_of_the_runs_end() -> None:
    assert verdict(beating(served(10), (50.0, 0.2)))["status"] == "VALID"
    assert "notes" not in verdict(beating(served(10), (50.0, 0.2)))


def test_a_late_thread_makes_no_stamp_of_the_kernel_late() -> None:
    stalls = [(i * 0.1 + 0.04, 0.04) for i in range(400)]
    assert verdict(beating(served(400), *stalls))["status"] == "INVALID"
    service = beating(served(400), *stalls, stamped_by="kernel")
    assert verdict(service) == {"status": "VALID", "reasons": []}
    assert service.summary()["receive_lag_s"]["max"] == pytest.approx(0.04)


def test_events_that_were_read_together_are_as_doubtful_as_the_read_was_late() -> None:
    service = beating(served(100), stamped_by="kernel")
    came_s = [i * 0.1 + 0.05 + 0.02 for i in range(5)]
    since_s = [time_s - 0.015 for time_s in came_s]
    service.recorder.event(
        "late_stamps", "client", since_s[0], came_s[-1], since_s=since_s, came_s=came_s
    )
    lag = service.summary()["receive_lag_s"]
    assert lag["tokens_p99"] == pytest.approx(0.015)  # of five tokens in three hundred
    assert lag["with_send_p99"] == pytest.approx(0.0)  # none of them a first one
    (reason,) = verdict(service)["reasons"]
    assert "P99 receive lag over tokens 15.0 ms" in reason
    assert "read nothing for 15 ms" in verdict(service)["notes"][0]


@pytest.mark.parametrize(
    ("tokens", "num_readers", "told"), [(20_001, 1, True), (20_000, 1, False), (20_001, 2, False)]
)
def test_a_late_client_with_more_tokens_than_one_process_reads_is_told_of_more(
    tokens: int, num_readers: int, told: bool
) -> None:
    service = Service((0.0, tokens))
    service.send(0, lag_s=0.4)
    service.chunks(0, tokens, 0.5)
    service.recorder.completed(service.requests[0])
    reasons = verdict(beating(service, (0.45, 0.2), num_readers=num_readers))["reasons"]
    assert len(reasons) == 2  # of sending and of stamps
    assert all(("+client.processes=2" in reason) is told for reason in reasons)
