"""The cut of a warm-up against a brute-force MSER, and what is said of a run's course."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from harness.records.end_table import steady_lines
from harness.records.steady import Course, grew
from harness.records.token_log import Floats, TokenLog
from harness.records.warm_up import BATCH, MIN_VALUES, mser, warm_up_values
from tests.unit.metrics.service import Service

FINITE = st.floats(-1e3, 1e3, allow_nan=False, width=32)


def brute_force_mser(means: Floats) -> list[float]:
    found = []
    for d in range(len(means) // 2 + 1):
        left = means[d:]
        found.append(float(((left - left.mean()) ** 2).sum()) / len(left) ** 2)
    return found


@given(arrays(np.float64, st.integers(10, 60), elements=FINITE))
def test_mser_is_what_its_definition_says(means: Floats) -> None:
    scale = float(np.abs(means).max()) ** 2
    np.testing.assert_allclose(mser(means), brute_force_mser(means), rtol=1e-9, atol=1e-12 * scale)


@given(arrays(np.float64, st.integers(MIN_VALUES, 300), elements=FINITE))
def test_what_is_left_out_has_the_least_mser(values: Floats) -> None:
    means = values[: len(values) // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    expected = brute_force_mser(means)
    cut = warm_up_values(values)
    at = len(means) // 2 if cut is None else cut // BATCH
    near = 1e-9 * expected[0] + 1e-11 * float(np.abs(means).max()) ** 2
    assert expected[at] <= min(expected) + near
    assert cut is None or (cut % BATCH == 0 and cut < len(values) / 2)


@given(st.floats(0.001, 1e6), st.integers(MIN_VALUES, 500))
def test_equal_values_have_no_warm_up(value: float, count: int) -> None:
    assert warm_up_values(np.full(count, value)) == 0


def test_a_step_is_cut_where_it_ends() -> None:
    values = np.tile([0.9, 1.1], 100)
    values[:40] += 20
    assert warm_up_values(values) == 40


def test_a_ramp_never_settles_and_few_values_tell_nothing() -> None:
    assert warm_up_values(np.arange(1000.0)) is None
    assert warm_up_values(np.ones(MIN_VALUES - 1)) is None


@pytest.mark.parametrize(
    ("backlog", "said"),
    [
        ((1.0, 2.0, 3.0, 4.0, 5.0), True),
        ((1.0, 2.0, 3.0, 2.9, 5.0), False),
        ((10.0, 11.0, 12.0, 13.0, 14.0), False),
        ((0.0, 0.0, 0.0, 0.0, 0.0), False),
        ((), False),
    ],
)
def test_a_backlog_grew_where_each_span_had_more_and_the_last_half_as_many_again(
    backlog: tuple[float, ...], said: bool
) -> None:
    assert grew(backlog) == said


def played(service_s: float, count: int = 200, warm_up: int = 0) -> Service:
    """One request a second to a server that serves one at a time, the first `warm_up` of them ten
    times as slowly; each answer has two tokens, the second 1 ms after the first."""
    service, free_s = Service(*((float(i), 2) for i in range(count))), 0.0
    for i in range(count):
        free_s = max(free_s, float(i)) + (10 * service_s if i < warm_up else service_s)
        service.complete(i, free_s, free_s + 0.001)
    return service


def test_steady_numbers_leave_out_warm_up_and_drain() -> None:
    summary = played(0.5, warm_up=10).summary()
    steady = summary["steady"]
    # Ten requests take 50 s; the queue is then served at 2/s while 1/s arrives, so it is empty
    # after some 80 s.
    assert 70 <= steady["from_s"] <= 95
    assert steady["to_s"] == 199.0
    assert steady["num_requests"] == 200 - steady["from_s"]
    assert steady["ttft_s"]["mean"] == pytest.approx(0.5, abs=0.01)
    assert summary["ttft_s"]["mean"] > 2
    assert steady["request_throughput_per_s"] == pytest.approx(1.0, abs=0.02)
    assert steady["slo_attainment"]["request"] == 1.0 > summary["slo_attainment"]["request"]
    [(name, words)] = steady_lines(summary)
    assert name == "steady state"
    assert "mean TTFT 5" in words
    assert "100.0%" in words
    assert not summary["verdict"].keys() & {"notes", "noted"}


def test_a_run_that_is_steady_throughout_has_nothing_to_add() -> None:
    summary = played(0.5).summary()
    assert summary["steady"]["from_s"] == 0.0
    assert summary["steady"]["ttft_s"] == summary["ttft_s"]
    assert not [*steady_lines(summary)]
    assert "notes" not in summary["verdict"]


def test_an_overloaded_run_has_no_steady_state_and_the_notes_say_why() -> None:
    summary = played(3.0).summary()
    assert summary["verdict"]["status"] == "VALID"
    assert summary["steady"]["from_s"] is None
    assert summary["steady"]["reason"]
    notes = " ".join(summary["verdict"]["notes"])
    for said in ("shorter than its warm-up", "backlog still grew", "the drain after the last"):
        assert said in notes
    assert summary["verdict"]["noted"] == ["short run", "growing backlog", "long drain"]
    assert summary["steady"]["drain_s"] == pytest.approx(200 * 3.0 + 0.001 - 199)


def test_requests_that_arrive_at_once_have_no_steady_state() -> None:
    service = Service(*((0.0, 1) for _ in range(60)))
    for i in range(60):
        service.complete(i, 0.1 * (i + 1))
    steady = service.summary()["steady"]
    assert steady["from_s"] is None
    assert "at once" in steady["reason"]
    assert steady["backlog"] == []


def test_a_request_that_timed_out_stays_in_the_backlog() -> None:
    service = Service(*((float(i), 1) for i in range(11)))
    for i in range(11):
        if i == 0:
            service.send(0)
            service.fail(0, timeout=True)
        else:
            service.complete(i, i + 0.5)
    backlog = Course.of(TokenLog.from_table(service.table())).backlog
    assert backlog == pytest.approx([1.5] * 5)


@given(st.data())
def test_part_of_a_log_is_the_log_of_these_requests(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=1, max_size=6))
    keep = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))

    def log(indices: list[int]) -> TokenLog:
        service = Service(*((float(i), max(1, sum(sizes[i]))) for i in indices))
        for row, i in enumerate(indices):
            service.send(row)
            for k, size in enumerate(sizes[i]):
                service.chunks(row, size, i + 0.1 * (k + 1))
        return TokenLog.from_table(service.table())

    whole, rows = log([*range(len(sizes))]), np.array(keep)
    if not rows.any():
        return
    part = log([i for i, kept in enumerate(keep) if kept])
    np.testing.assert_array_equal(whole.of(rows).times_s, part.times_s)
    np.testing.assert_array_equal(whole.of(rows).chunk_tokens, part.chunk_tokens)
    np.testing.assert_array_equal(whole.of(rows).itl_chunk_s(), part.itl_chunk_s())
