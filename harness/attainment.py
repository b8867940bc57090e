"""How much of the service met its SLO, by three definitions that the literature all calls
"SLO attainment". Every scheduled request is in every denominator: one that failed, timed out or
was never sent is not left out but missed.
"""

from __future__ import annotations

import numpy as np

from harness.slo import Slo
from harness.token_log import Bools, Floats, Ints, TokenLog

GRACE_S = 1e-9  # a limit such as 0.1 s has no exact float: a token due now must not be late


def on_time(log: TokenLog, slo: Slo) -> Bools:
    """Per produced token: t_i ≤ arrival + TTFT + i·TBT, i = 0, 1, … within its request."""
    return _lateness_s(log, slo) <= GRACE_S


def by_group(
    log: TokenLog, slo: Slo, groups: Ints, num_groups: int
) -> list[dict[str, float | int]]:
    """num_requests and the three attainments of each group; `groups` has a request's, 0, 1, …

    Every group has a request at least.
    """
    counts = np.bincount(groups, minlength=num_groups)
    totals = np.bincount(groups, log.asked_tokens, num_groups)
    token = np.bincount(groups, on_time_tokens(log, slo), num_groups) / totals
    time = np.bincount(groups, time_shares(log, slo), num_groups) / counts
    request = np.bincount(groups, good_requests(log, slo), num_groups) / counts
    return [
        {
            "num_requests": int(counts[group]),
            "token": float(token[group]),
            "time": float(time[group]),
            "request": float(request[group]),
        }
        for group in range(num_groups)
    ]


def token_attainment(log: TokenLog, slo: Slo) -> float:
    """Share of the tokens asked for that came by their deadline (Aegaeon, SOSP'25 §2.1).

    A token that was never produced is missed; tokens beyond those asked for do not count.
    """
    return float(on_time_tokens(log, slo).sum() / log.asked_tokens.sum())


def on_time_tokens(log: TokenLog, slo: Slo) -> Ints:
    """Per request: how many of the tokens asked for came by their deadline."""
    rank = np.arange(len(log.times_s)) - np.repeat(log.start, log.num_tokens)
    asked = rank < np.repeat(log.asked_tokens, log.num_tokens)
    counts: Ints = np.bincount(log.owner()[on_time(log, slo) & asked], minlength=len(log))
    return counts


def good_requests(log: TokenLog, slo: Slo) -> Bools:
    """Per request: completed, TTFT and mean TBT (tpot) both within the SLO.

    A one-token output has no TBT and is judged by its TTFT alone.
    """
    ttft_ok = log.ttft_s <= slo.ttft_s + GRACE_S
    tbt_ok = (log.tpot_s <= slo.tbt_s + GRACE_S) | (log.num_tokens == 1)
    good: Bools = log.completed & ttft_ok & tbt_ok
    return good


def time_attainment(log: TokenLog, slo: Slo) -> float:
    """Mean over requests of the share of service time that met the SLO: the metric of Aegaeon's
    artifact, which differs from the definition in its paper (`token_attainment`)."""
    return float(time_shares(log, slo).mean())


def time_shares(log: TokenLog, slo: Slo) -> Floats:
    """Per request: the share of its service time that met the SLO; 0 if it was not completed."""
    shares = np.where(log.completed, 1.0, 0.0)
    late_s = np.full(len(log), -np.inf)
    lateness = _lateness_s(log, slo)
    late_s[log.started] = np.maximum.reduceat(lateness, log.start[log.started]) if len(log) else 0
    for row in np.flatnonzero(log.completed & (late_s > GRACE_S)):
        start = log.start[row]
        times_s = log.times_s[start : start + log.num_tokens[row]] - log.arrival_s[row]
        shares[row] = _good_time_s(times_s.tolist(), slo.ttft_s, slo.tbt_s) / times_s[-1]
    return shares


def _lateness_s(log: TokenLog, slo: Slo) -> Floats:
    """Per produced token: its time less its deadline."""
    rank = np.arange(len(log.times_s)) - np.repeat(log.start, log.num_tokens)
    arrival_s = np.repeat(log.arrival_s, log.num_tokens)
    lateness: Floats = log.times_s - arrival_s - (slo.ttft_s + rank * slo.tbt_s)
    return lateness


def _good_time_s(times_s: list[float], ttft_s: float, tbt_s: float) -> float:
    """Seconds of [0, last token] that count as good; `times_s` are relative to the arrival.

    A window opens at the arrival. A token no later than `target_s` into it credits the window
    with the target; a later one banks the credit and opens a new window. The target grows by
    the TBT with each token and never shrinks back.
    """
    opened_s = credit_s = good_s = 0.0
    target_s = ttft_s
    for time_s in times_s:
        if time_s - opened_s <= target_s + GRACE_S:
            credit_s = target_s
        else:
            good_s += credit_s
            opened_s, credit_s = time_s, 0.0
        target_s += tbt_s
    return good_s + min(target_s, times_s[-1] - opened_s)
