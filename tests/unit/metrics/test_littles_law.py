"""L = λ·W on logs done by hand, and what it makes of a log that contradicts itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.metrics.service import Service, steady


def two_requests() -> Service:
    """In the system from 0 to 3 s and from 1 to 2 s: 4 request-seconds in 3 s."""
    service = Service((0.0, 2), (1.0, 1))
    service.complete(0, 1.5, 3.0)
    service.complete(1, 2.0)
    return service


def test_both_sides_of_a_case_done_by_hand() -> None:
    law = two_requests().summary()["littles_law"]
    assert law["l"] == pytest.approx(4 / 3)
    assert law["lambda_w"] == pytest.approx(4 / 3)
    assert law["num_left_out"] == 0


@given(st.integers(1, 60), st.integers(0, 2**32))
def test_the_sides_are_equal_whenever_the_run_starts_and_ends_empty(n: int, seed: int) -> None:
    summary = steady(n, seed).summary(simulated=True)
    assert abs(summary["littles_law"]["relative_gap"]) < 1e-9
    assert summary["verdict"]["status"] == "VALID"
    assert summary["verdict"]["reasons"] == []


def test_requests_without_an_end_in_the_log_are_in_neither_side() -> None:
    service = Service((0.0, 2), (1.0, 1), (1.0, 9), (1.0, 9))
    service.complete(0, 1.5, 3.0)
    service.complete(1, 2.0)
    service.send(2)
    service.fail(2)
    service.send(3)
    service.tokens(3, 2.5)
    service.fail(3, "not finished", timeout=True)
    law = service.summary()["littles_law"]
    assert (law["l"], law["lambda_w"]) == (pytest.approx(4 / 3), pytest.approx(4 / 3))
    assert law["num_left_out"] == 2


def late_client() -> Service:
    service = Service((0.0, 1), (1.0, 1))
    service.complete(0, 1.0)
    service.complete(1, 2.0, lag_s=0.001)
    return service


def tokens_out_of_order() -> Service:
    service = Service((0.0, 2), (0.0, 1))
    service.complete(0, 3.0, 1.0)
    service.complete(1, 3.0)
    return service


def end_before_beginning() -> Service:
    service = Service((0.0, 1), (2.0, 1))
    service.complete(0, 3.0)
    service.complete(1, 1.0)
    return service


def test_only_a_simulated_run_is_held_to_it() -> None:
    assert late_client().summary()["verdict"]["status"] == "VALID"


@pytest.mark.parametrize("broken", [late_client, tokens_out_of_order, end_before_beginning])
def test_a_simulated_run_whose_log_contradicts_itself_is_invalid(broken: type[Service]) -> None:
    summary = broken().summary(simulated=True)
    assert abs(summary["littles_law"]["relative_gap"]) > 1e-6
    assert summary["verdict"]["status"] == "INVALID"
    assert any("Little's law is broken" in reason for reason in summary["verdict"]["reasons"])


def test_a_run_that_took_no_time_has_no_sides_to_compare() -> None:
    service = Service((0.0, 1))
    service.complete(0, 0.0)
    assert service.summary(simulated=True)["littles_law"]["relative_gap"] is None


def test_latencies_that_are_negative_throughout_are_a_gap() -> None:
    service = Service((1.0, 1), (2.0, 1))
    service.complete(0, 0.5)
    service.complete(1, 1.5)
    law = service.summary(simulated=True)["littles_law"]
    assert law["lambda_w"] < 0
    assert law["relative_gap"] == pytest.approx(1.0)  # L is 0: none leaves before it has come
