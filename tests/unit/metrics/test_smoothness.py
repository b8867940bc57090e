from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.records.end_table import smoothness_lines
from harness.records.metrics import MetricsConfig
from harness.records.smoothness import (
    fluidity_indices,
    qoe_of_requests,
    smooth_goodput,
    summarise_stalls,
)
from harness.records.token_log import TokenLog
from tests.unit.metrics.service import Service, absolute


def log_of(*answers: list[float]) -> TokenLog:
    service = Service(*((0.0, len(times_s)) for times_s in answers))
    for i, times_s in enumerate(answers):
        service.complete(i, *times_s)
    return TokenLog.from_table(service.table())


def test_a_stall_is_a_long_gap_between_tokens_and_no_wait_for_the_first() -> None:
    log = log_of([5.0, 5.1, 7.1, 7.2, 8.7], [9.0, 10.0], [0.5])
    assert summarise_stalls(log, 1.0) == {
        "threshold_s": 1.0,
        "count": 2,
        "seconds": pytest.approx(3.5),
        "num_requests": 1,
        "longest_s": pytest.approx(2.0),
    }


def test_smooth_goodput_takes_from_tokens_what_their_reader_could_have_read_while_waiting() -> None:
    """Of a reader of one token in 0.1 s from 1 s on."""
    in_time, late = [0.4, 1.1, 1.2], [1.0, 1.4, 1.5, 4.0]  # its last token is 2.7 s late
    service = Service((0.0, 3), (0.0, 4), (0.0, 5), (0.0, 5))
    service.complete(0, *in_time)
    service.complete(1, *late)
    service.send(2)
    service.fail(2)  # without a token: of no worth, and no wait is known to have ended
    service.tokens(3, 1.5)
    service.fail(3)  # after a token, which was 0.5 s late
    log = TokenLog.from_table(service.table())
    worth = 3 + (4 - 27) + 0 + (1 - 5)
    assert smooth_goodput(log, absolute(1.0, 0.1)) == pytest.approx(worth / 4.0)
    assert smooth_goodput(log, absolute(9.0, 9.0)) == pytest.approx(8 / 4.0)


def test_without_a_token_there_is_no_stall() -> None:
    service = Service((0.0, 3))
    service.send(0)
    service.fail(0)
    found = summarise_stalls(TokenLog.from_table(service.table()), 1.0)
    assert (found["count"], found["seconds"], found["longest_s"]) == (0, 0.0, 0.0)


def counted_token_by_token(times_s: list[float], ttft_s: float, tbt_s: float) -> float:
    """Etalon's index as its paper defines it: each deadline in turn, and how many a late token
    misses."""
    due_s, met, missed = ttft_s, 0, 0
    for time_s in times_s:
        if time_s <= due_s + 1e-9:
            met += 1
            due_s += tbt_s
        else:
            while due_s <= time_s + 1e-9:
                missed += 1
                due_s += tbt_s
            due_s = time_s + tbt_s
    return met / (met + missed)


@given(
    st.lists(st.integers(0, 40).map(lambda tenths: tenths + 0.5), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 5),
)
def test_fluidity_is_the_share_of_deadlines_met(gaps: list[float], ttft: int, tbt: int) -> None:
    times_s = (np.cumsum(gaps) / 10).tolist()
    slo = absolute(ttft / 10, tbt / 10)
    [found] = fluidity_indices(log_of(times_s), slo).tolist()
    assert found == pytest.approx(counted_token_by_token(times_s, slo.ttft_s, slo.tbt_s))


def broken_off() -> TokenLog:
    """Of four tokens each: one came of the first request, none of the second."""
    service = Service((0.0, 4), (0.0, 4))
    service.send(0)
    service.tokens(0, 0.5)
    service.fail(0, timeout=True)
    service.send(1)
    service.fail(1)
    return TokenLog.from_table(service.table())


def test_tokens_that_never_came_missed_their_deadlines() -> None:
    assert fluidity_indices(broken_off(), absolute(1.0, 1.0)).tolist() == [0.25, 0.0]


@pytest.mark.parametrize(
    ("times_s", "expected"),
    [
        ([0.2, 0.3, 0.4, 0.5], 1.0),  # a reader at 1 s a token never waits
        # Read from 2 to 4: an area of 2. Expected from 1 to 3: 2 as well, and 2 for a second more.
        ([2.0, 2.1], 2 / 4),
        # Read until 6. Expected from 1 to 4, an area of 4.5, and 3 for 2 s more. One is 2 s behind.
        ([1.0, 2.0, 5.0], (10.5 - 2) / 10.5),
        # The last is late by less than the one before it: it is still read behind that one.
        ([1.0, 4.0, 4.5], (4.5 + 3 * 2 - 4) / (4.5 + 3 * 2)),
    ],
)
def test_qoe_is_what_was_read_over_what_was_expected(times_s: list[float], expected: float) -> None:
    [found] = qoe_of_requests(log_of(times_s), absolute(1.0, 1.0)).tolist()
    assert found == pytest.approx(expected)


@given(
    st.lists(st.integers(0, 40).map(lambda tenths: tenths + 0.5), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 5),
)
def test_qoe_is_a_ratio_of_areas(gaps: list[float], ttft: int, tbt: int) -> None:
    times_s, slo = (np.cumsum(gaps) / 10).tolist(), absolute(ttft / 10, tbt / 10)
    begun_s, count = [slo.ttft_s - slo.tbt_s], len(times_s)
    for time_s in times_s:
        begun_s.append(max(time_s, begun_s[-1] + slo.tbt_s))
    end_s = begun_s[-1] + slo.tbt_s
    at_s = np.linspace(0.0, end_s, 40_001)
    read = sum(np.clip((at_s - begun) / slo.tbt_s, 0, 1) for begun in begun_s[1:])
    expected = np.clip((at_s - slo.ttft_s) / slo.tbt_s, 0, count)
    [found] = qoe_of_requests(log_of(times_s), slo).tolist()
    assert found == pytest.approx(np.mean(read) / np.mean(expected), rel=1e-3)


def test_qoe_of_an_answer_that_broke_off_is_the_share_that_came() -> None:
    assert qoe_of_requests(broken_off(), absolute(1.0, 1.0)).tolist() == [0.25, 0.0]


def test_the_table_tells_of_stalls_and_of_requests_that_were_not_fluid() -> None:
    service = Service((0.0, 3), (0.0, 3))
    service.complete(0, 0.5, 0.55, 0.6)
    service.complete(1, 0.5, 3.5, 3.6)
    told = dict(smoothness_lines(service.summary()))
    assert "50.0% of the requests" in told["fluidity index"]
    # The second is read 0, 2.4 and 2.4 s behind: 4.8 of 3 x 2.4 + 9 x 0.1 / 2.
    assert told["QoE"].startswith(f"mean {1 - 4.8 / 7.65 / 2:.3f}; 50.0%")
    assert told["stalls"] == "1 gaps over 1.00 s in 1 requests: 3.00 s in all, the longest 3.00 s"
    smooth = Service((0.0, 2))
    smooth.complete(0, 0.5, 0.6)
    assert not [*smoothness_lines(smooth.summary())]


@pytest.mark.parametrize("stall_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_threshold_that_is_no_time_is_refused(stall_s: float) -> None:
    with pytest.raises(UsageError, match=r"metrics\.stall_s"):
        MetricsConfig(stall_s=stall_s)
