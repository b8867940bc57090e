from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.attainment import GRACE_S, Attained, good_requests
from harness.records.token_log import Floats, TokenLog
from tests.unit.metrics.service import Service, absolute, steady


def log_of(service: Service) -> TokenLog:
    return TokenLog.from_table(service.table())


def served(*times_s: float, arrival_s: float = 0.0) -> TokenLog:
    service = Service((arrival_s, len(times_s)))
    service.complete(0, *times_s)
    return log_of(service)


def test_token_deadlines_grow_by_the_tbt_from_the_arrival() -> None:
    # Deadlines 11, 13, 15, 17 for a request that arrives at 8.
    log = served(11.0, 14.0, 15.0, 17.5, arrival_s=8.0)
    assert Attained.of(log, absolute(3.0, 2.0)).token == pytest.approx(2 / 4)


def test_tokens_produced_early_buy_time_for_a_stall() -> None:
    log = served(0.1, 0.2, 0.3, 1.3)  # deadlines 1.0, 1.1, 1.2, 1.3
    assert Attained.of(log, absolute(1.0, 0.1)).token == 1.0
    assert good_requests(log, absolute(1.0, 0.1)).tolist() == [False]  # mean TBT 0.4 s


def test_time_attainment_of_aegaeons_own_example() -> None:
    # The artifact's comment: tokens at 3, 6, 7, 8 with TTFT 3 and TBT 2 attain (0, 3) and (6, 8).
    assert Attained.of(served(3, 6, 7, 8), absolute(3, 2)).time == pytest.approx(5 / 8)


def test_time_attainment_ignores_when_the_request_arrived() -> None:
    log = served(103, 106, 107, 108, arrival_s=100)
    assert Attained.of(log, absolute(3, 2)).time == pytest.approx(5 / 8)


def test_time_attainment_of_a_late_first_token_is_what_comes_after_it() -> None:
    # The window opens at 4 and credits nothing before; the target has grown to 3 + 2 by then.
    assert Attained.of(served(4, 5, 6), absolute(3, 2)).time == pytest.approx(2 / 6)


def test_an_unserved_request_scores_nothing_but_counts() -> None:
    service = Service((0.0, 1), (0.0, 1), (0.0, 1))
    service.complete(1, 0.5)
    service.send(0)
    service.fail(0)  # the third was never sent
    log = log_of(service)
    slo = absolute(1.0, 0.1)
    assert Attained.of(log, slo).time == pytest.approx(1 / 3)
    assert Attained.of(log, slo).token == pytest.approx(1 / 3)
    assert good_requests(log, slo).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("ttft", lambda times_s: times_s[0]),
        ("tpot", lambda times_s: np.diff(times_s).mean()),
        ("e2e", lambda times_s: times_s[-1]),
        ("e2el", lambda times_s: times_s[-1]),
        ("tbt_p99", lambda times_s: np.percentile(np.diff(times_s), 99)),
        ("tbt_max", lambda times_s: np.diff(times_s).max()),
    ],
)
def test_a_limit_of_each_kind_is_on_the_requests_own_latency(
    kind: str, value: Callable[[Floats], float]
) -> None:
    service = steady(60)
    log = log_of(service)
    values_s = [
        value(log.times_s[start : start + 20] - arrival_s)
        for start, arrival_s in zip(log.start, log.arrival_s, strict=True)
    ]
    median_ms = float(np.median(values_s)) * 1e3
    good = good_requests(log, absolute(goodput=f"{kind}:{median_ms}"))
    assert good.tolist() == [value_s * 1e3 <= median_ms for value_s in values_s]
    assert 0 < good.sum() < 60


def test_a_good_request_meets_all_limits_and_those_of_its_model_first() -> None:
    service = Service(*[(0.0, 3)] * 4, (0.0, 1))
    for i, model in enumerate(("a", "b", "a", "org/c:1", "a")):
        service.requests[i].model = model
    for i in range(3):
        service.complete(i, 0.5, 0.6, 0.9)
    service.complete(3, 0.1, 0.2, 0.3)
    service.complete(4, 0.3)  # has no gap to be judged by

    def good(goodput: str) -> list[int]:
        return np.flatnonzero(good_requests(log_of(service), absolute(goodput=goodput))).tolist()

    assert good("ttft:500") == [0, 1, 2, 3, 4]
    assert good("ttft:500 tbt_max:200") == [3, 4]
    assert good("ttft:400 b/ttft:500") == [1, 3, 4]
    assert good("ttft:500 tbt_max:200 b/tbt_max:300") == [1, 3, 4]
    assert good("tbt_p99:298 org/c:1/e2e:200") == [0, 1, 2, 4]
    assert good("b/e2e:100") == [3, 4]  # the others: TTFT 1 s, TPOT 0.1 s


def test_no_request_is_known_to_meet_what_is_not_known() -> None:
    log = served(0.1, 0.2, 0.3)
    for goodput, known in (("tbt_max:900 ttft:900", [False]), ("tpot:900", [True])):
        assert good_requests(log, absolute(goodput=goodput)).tolist() == [True]
        found = good_requests(log, absolute(goodput=goodput), times_known=False)
        assert found.tolist() == known


def reference_time_share(per_token_s: list[float], ttft_s: float, tbt_s: float) -> float:
    """The metric written out from its prose definition, window by window."""
    total = sum(per_token_s)
    good = window_start = credit = now = 0.0
    for i, gap_s in enumerate(per_token_s):
        now += gap_s
        target = ttft_s + i * tbt_s
        if now - window_start <= target + GRACE_S:
            credit = target
        else:
            good, window_start, credit = good + credit, now, 0.0
    good += min(ttft_s + len(per_token_s) * tbt_s, total - window_start)
    return good / total


gaps = st.lists(
    st.sampled_from([0.01, 0.1, 0.37, 1.0, 5.0, 30.0]).flatmap(
        lambda scale: st.floats(0.1, 1.0).map(lambda x: x * scale)
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None)
@given(
    requests=st.lists(gaps, min_size=1, max_size=6),
    ttft_s=st.sampled_from([0.05, 1.0, 10.0]),
    tbt_s=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_time_attainment_equals_the_walk_through_every_token(
    requests: list[list[float]], ttft_s: float, tbt_s: float
) -> None:
    service = Service(*((0.0, len(request)) for request in requests))
    for i, request in enumerate(requests):
        times_s, now = [], 0.0
        for gap_s in request:
            now += gap_s
            times_s.append(now)
        service.complete(i, *times_s)
    shares = [reference_time_share(request, ttft_s, tbt_s) for request in requests]
    measured = Attained.of(log_of(service), absolute(ttft_s, tbt_s)).time
    assert measured == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    assert 0 <= measured <= 1 + 1e-9


@settings(deadline=None)
@given(times=gaps, ttft_s=st.floats(0.05, 10), tbt_s=st.floats(0.01, 1), tighter=st.floats(0.1, 1))
def test_a_tighter_slo_is_never_better_attained(
    times: list[float], ttft_s: float, tbt_s: float, tighter: float
) -> None:
    log = served(*sorted(times))
    loose, tight = absolute(ttft_s, tbt_s), absolute(ttft_s * tighter, tbt_s * tighter)
    assert Attained.of(log, tight).token <= Attained.of(log, loose).token
    assert good_requests(log, tight).sum() <= good_requests(log, loose).sum()


def test_who_may_end_early_misses_nothing_by_it_and_who_failed_does() -> None:
    service = Service((0.0, 4), (0.0, 4))
    service.complete(0, 0.1, 0.2)
    service.send(1)
    service.tokens(1, 0.1, 0.2)
    service.fail(1)
    log, limits = log_of(service), absolute(1.0, 1.0)
    assert Attained.of(log, limits).token == pytest.approx(4 / 8)
    assert Attained.of(log.as_ended(), limits).token == pytest.approx(4 / 6)
