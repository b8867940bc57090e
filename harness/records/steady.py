"""What a run was in its steady state: from the end of its warm-up to its last arrival.

A run begins with empty queues and ends with a drain in which nothing arrives any more. Neither is
what a server does under the asked load. The whole run's numbers stay the headline; these stand
beside them. Pure functions over the token log.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from harness.records.attainment import Attained
from harness.records.percentiles import distribution
from harness.records.token_log import Floats, TokenLog
from harness.records.warm_up import MIN_VALUES, warm_up_values

SPANS = 5  # of equal length, in the second half of the arrivals
GREW = 1.5  # times as many requests in the last span as in the first


@dataclass(frozen=True, slots=True)
class Course:
    """How a run went. Times are seconds on the schedule's clock."""

    last_arrival_s: float
    from_s: float | None  # where the steady state begins; None: there is none, for the `reason`
    reason: str  # empty: there is one
    drain_s: float  # from the last arrival to the last token
    drain_share: float  # of the run's duration
    backlog: tuple[float, ...]  # mean unfinished requests in each of SPANS; empty: no time passed

    @staticmethod
    def of(log: TokenLog) -> Course:
        last_s, duration_s = float(log.arrival_s.max()), log.duration_s
        drain_s = duration_s - (last_s - float(log.arrival_s.min()))
        backlog = unfinished(log)
        from_s, reason = _began(log, backlog)
        share = drain_s / duration_s if duration_s > 0 else 0.0
        return Course(last_s, from_s, reason, drain_s, share, backlog)


TOO_FEW = f"under {MIN_VALUES} requests"
AT_ONCE = "all requests arrived at once"
NOT_OVER = "the warm-up was not over in the first half of the run"
GROWING = "the backlog still grew at the last arrival"


def _began(log: TokenLog, backlog: tuple[float, ...]) -> tuple[float | None, str]:
    """Where the steady state begins, or why there is none: the later of the ends of the warm-up by
    TTFT and by E2E latency."""
    if not backlog:
        return None, AT_ONCE
    by_arrival = np.argsort(log.arrival_s, kind="stable")
    begins = [float(log.arrival_s.min())]
    for values_s in (log.ttft_s[by_arrival], log.e2e_s[by_arrival]):
        known = np.isfinite(values_s)
        if known.sum() < MIN_VALUES:
            return None, TOO_FEW
        cut = warm_up_values(values_s[known])
        if cut is None:
            return None, NOT_OVER
        begins.append(float(log.arrival_s[by_arrival][known][cut]))
    return (None, GROWING) if grew(backlog) else (max(begins), "")


def grew(backlog: tuple[float, ...]) -> bool:
    """Whether each span had more unfinished requests than the one before it, and the last GREW
    times as many as the first. Of five spans in random order one in 120 is so ordered."""
    rising = all(b > a for a, b in pairwise(backlog))
    return len(backlog) > 1 and rising and backlog[-1] >= GREW * backlog[0]


def unfinished(log: TokenLog) -> tuple[float, ...]:
    """The mean number of requests that had arrived and not ended, in each of SPANS equal spans of
    the second half of the arrivals; empty: no time passed between them.

    A request that timed out never ended. One that failed otherwise, or completed without a token,
    is left out: the log does not have the time of its end.
    """
    first_s, last_s = float(log.arrival_s.min()), float(log.arrival_s.max())
    if last_s <= first_s:
        return ()
    counted = (log.status != "failed") & (log.started | ~log.completed)
    arrives_s = log.arrival_s[counted]
    leaves_s = np.where(log.completed, log.last_s, np.inf)[counted]
    edges = np.linspace((first_s + last_s) / 2, last_s, SPANS + 1)
    inside_s = [
        np.clip(np.minimum(leaves_s, end) - np.maximum(arrives_s, start), 0.0, None).sum()
        for start, end in pairwise(edges.tolist())
    ]
    return tuple(float(each) * SPANS * 2 / (last_s - first_s) for each in inside_s)


def summarise_steady(
    log: TokenLog, course: Course, attained: Attained, times_known: bool
) -> dict[str, Any]:
    """`steady` of summary.json. Latencies and attainment are of the requests that arrived from
    `from_s` to `to_s`. Rates are of the requests that completed, and of the tokens that came, in
    this time."""
    about = {
        "from_s": course.from_s,
        "to_s": course.last_arrival_s,
        "reason": course.reason,
        "drain_s": course.drain_s,
        "backlog": list(course.backlog),
    }
    from_s, to_s = course.from_s, course.last_arrival_s
    if from_s is None:
        return about
    rows = log.arrival_s >= from_s
    kept, span_s = log.of(rows), to_s - from_s

    def per_s(times_s: Floats) -> float | None:
        inside = (times_s >= from_s) & (times_s <= to_s)
        return float(inside.sum()) / span_s if span_s > 0 else None

    return about | {
        "num_requests": len(kept),
        "ttft_s": distribution(kept.ttft_s),
        "tpot_s": distribution(kept.tpot_s),
        "tbt_s": distribution(kept.tbt_s() if times_known else np.empty(0)),
        "e2e_s": distribution(kept.e2e_s),
        "request_throughput_per_s": per_s(log.last_s[log.completed]),
        "output_throughput_tokens_per_s": per_s(log.times_s),
        "slo_attainment": {"request": float(attained.good[rows].mean())},
        "goodput_per_s": per_s(log.last_s[attained.good]),
    }
