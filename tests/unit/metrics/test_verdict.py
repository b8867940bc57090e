from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.records.evidence import BUSY
from tests.unit.metrics.service import Service


def verdict(service: Service) -> tuple[str, list[str]]:
    found: dict[str, Any] = service.summary()["verdict"]
    return found["status"], found["reasons"]


def served(lags_s: list[float], ttft_s: float = 0.1, spacing_s: float = 1.0) -> Service:
    service = Service(*((i * spacing_s, 1) for i in range(len(lags_s))))
    for i, lag_s in enumerate(lags_s):
        service.complete(i, i * spacing_s + ttft_s, lag_s=lag_s)
    return service


@pytest.mark.parametrize(
    ("lag_s", "ttft_s", "status"),
    [(0.0049, 0.1, "VALID"), (0.0051, 0.1, "INVALID"), (0.0051, 5.0, "INVALID")],
)
def test_send_lag_limit_is_5_ms_however_long_the_ttft(
    lag_s: float, ttft_s: float, status: str
) -> None:
    assert verdict(served([lag_s] * 20, ttft_s))[0] == status


def test_a_late_client_is_told_with_its_lag_and_the_limit() -> None:
    status, reasons = verdict(served([0.0] * 50 + [0.4] * 50))
    assert status == "INVALID"
    assert "P99 send lag 400.0 ms is over 5 ms" in reasons[0]


def test_a_late_client_says_what_else_was_busy() -> None:
    service = served([0.4] * 20)
    busy = {"name": "cc1", "pid": 12, "cores": 0.9}
    service.recorder.event(BUSY, "client", 0.0, 20.0, others=[busy])
    assert verdict(service)[1][0].endswith("; close what else was busy: cc1 (pid 12, 0.9 cores)")


def test_one_late_send_in_two_hundred_is_within_p99() -> None:
    assert verdict(served([0.0] * 100 + [0.4] + [0.0] * 99)) == ("VALID", [])


@pytest.mark.parametrize(("last_lag_s", "status"), [(1.9, "VALID"), (2.1, "INVALID")])
def test_achieved_rate_may_miss_the_asked_one_by_two_percent(
    last_lag_s: float, status: str
) -> None:
    # Each send falls a little further behind, which is a late client besides.
    lags_s = [last_lag_s * i / 100 for i in range(101)]
    _, reasons = verdict(served(lags_s, ttft_s=3600.0))
    missed = [reason for reason in reasons if "missed the asked 1.000/s by 2.1 %" in reason]
    assert bool(missed) is (status == "INVALID")


def test_a_burst_shorter_than_the_lag_limit_has_no_rate_to_miss() -> None:
    assert verdict(served([0.0, 0.001, 0.002], spacing_s=0.001)) == ("VALID", [])


def test_requests_that_vanish_are_named() -> None:
    service = Service(*((float(i), 2) for i in range(4)))
    service.send(0)  # no end
    service.send(1)
    service.fail(1, "")
    service.complete(2, 2.5)  # one token of two
    status, reasons = verdict(service)
    assert status == "INVALID"
    assert reasons == [
        "1 of 4 requests were never sent",
        "1 of 4 requests were sent but neither completed nor failed",
        "1 of 4 requests failed without a stated error",
        "1 of 4 requests completed with another number of tokens than asked, the first with 1 of 2",
    ]
    assert service.summary()["verdict"]["rules"] == ["every answer"]
    assert "rules" not in served([0.0] * 20).summary()["verdict"]


def test_failures_with_a_stated_error_leave_the_run_valid() -> None:
    service = Service((0.0, 2), (0.0, 1))
    service.send(0)
    service.fail(0, "the server said 503")
    service.complete(1, 0.1)
    assert verdict(service) == ("VALID", [])


def test_a_run_in_which_nothing_completed_is_invalid() -> None:
    service = Service((0.0, 2))
    service.send(0)
    service.fail(0, "the server said 503")
    assert verdict(service) == ("INVALID", ["none of 1 requests completed"])


def first_token_before_its_request() -> Service:
    service = Service((5.0, 2))
    service.complete(0, 4.0, 6.0)
    return service


def token_before_the_one_ahead_of_it() -> Service:
    service = Service((0.0, 3))
    service.complete(0, 2.0, 1.5, 3.0)
    return service


def end_before_the_request() -> Service:
    service = Service((5.0, 1))
    service.complete(0, 4.0)
    return service


@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (first_token_before_its_request, "1 of 1 values of TTFT are negative, down to -1 s"),
        (token_before_the_one_ahead_of_it, "1 of 2 values of gap between tokens are negative"),
        (end_before_the_request, "1 of 1 values of E2E latency are negative, down to -1 s"),
    ],
)
def test_time_that_runs_backwards_makes_a_run_of_any_world_invalid(
    broken: Callable[[], Service], reason: str, simulated: bool
) -> None:
    found = broken().summary(simulated=simulated)["verdict"]
    assert found["status"] == "INVALID"
    assert any(reason in text for text in found["reasons"])


@pytest.mark.parametrize(("num_failed", "status"), [(1, "VALID"), (11, "INVALID")])
def test_a_server_that_stood_still_is_named_and_invalid_where_a_tenth_failed(
    num_failed: int, status: str
) -> None:
    service = Service(*((float(i), 1) for i in range(100)))
    for i in range(100):
        if i < num_failed:
            service.send(i)
            service.fail(i, "not finished in 20 s", timeout=True)
        else:
            service.complete(i, i + 0.1)
    service.recorder.event("no_progress", "vllm-0", 10.0, 22.0)
    service.recorder.event("no_progress", "vllm-0", 10.0, 25.0)
    found = service.summary()["verdict"]
    said = "vllm-0 stood still: nobody got a token for 15 s while requests timed out"
    assert found["status"] == status
    assert (said in found["reasons"]) is (status == "INVALID")
    assert (said in found["notes"]) is (status == "VALID")
    failed = "11% of the requests failed: latencies are of the others"
    assert (failed in found["notes"]) is (status == "INVALID")
    assert found["noted"][0] == ("standstill" if status == "VALID" else "requests failed")
