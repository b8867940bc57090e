"""How much of the service met its SLO, by three definitions that the literature all calls
"SLO attainment". Every scheduled request is in every denominator: one that failed, timed out or
was never sent is not left out but missed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from harness.records.slo import KINDS, OF_SINGLE_TOKENS, Slo
from harness.records.token_log import Bools, Floats, Ints, TokenLog

GRACE_S = 1e-9  # a limit such as 0.1 s has no exact float: a token due now must not be late


@dataclass(slots=True, eq=False)
class Attained:
    """What each request attained, by the three definitions, and what that comes to."""

    asked_tokens: Ints
    on_time_tokens: Ints  # of those asked for: t_i ≤ arrival + TTFT + i·TBT, i = 0, 1, …
    time_shares: Floats  # of its service time, that met the SLO; 0: not completed, or no token
    good: Bools

    @staticmethod
    def of(log: TokenLog, slo: Slo, *, times_known: bool = True) -> Attained:
        """`times_known`: of single tokens."""
        late_s = lateness_s(log, slo)
        return Attained(
            log.asked_tokens,
            _on_time_tokens(log, late_s),
            _time_shares(log, slo, late_s),
            good_requests(log, slo, times_known=times_known),
        )

    def only(self, rows: Bools) -> Attained:
        """Of those requests alone for which `rows` is true."""
        return Attained(*(getattr(self, each.name)[rows] for each in fields(self)))

    def shares(self, *, times_known: bool) -> dict[str, float | None]:
        """`slo_attainment` of summary.json."""
        token, time = (self.token, self.time) if times_known else (None, None)
        return {"token": token, "time": time, "request": self.request}

    @property
    def token(self) -> float:
        """Share of the tokens asked for that came by their deadline (Aegaeon, SOSP'25 §2.1).

        A token that was never produced is missed; tokens beyond those asked for do not count.
        """
        return float(self.on_time_tokens.sum() / self.asked_tokens.sum())

    @property
    def time(self) -> float:
        """Mean over requests of the share of service time that met the SLO: the metric of Aegaeon's
        artifact, which differs from the definition in its paper (`token`)."""
        return float(self.time_shares.mean())

    @property
    def request(self) -> float:
        """Share of good requests."""
        return float(self.good.mean())


def good_requests(log: TokenLog, slo: Slo, *, times_known: bool = True) -> Bools:
    """Per request: completed, and within every limit that the SLO has for its model. Whatever else
    says that a request met its SLO asks here.

    A one-token output has no gap, and no limit on gaps. Where `times_known` says that the times of
    single tokens are not known, no longer output is known to meet limits on them.
    """
    limits_s = [slo.limits_s(model) for model in log.models]
    good = log.completed
    for kind in {kind: None for of_model in limits_s for kind in of_model}:
        limit_s = np.array([each.get(kind, np.inf) for each in limits_s])[log.of_model]
        known = times_known or kind not in OF_SINGLE_TOKENS
        values_s = KINDS[kind](log) if known else np.full(len(log), np.nan)
        exempt = np.isinf(limit_s) | (np.isnan(values_s) & (log.num_tokens == 1))
        good &= exempt | (values_s <= limit_s + GRACE_S)
    return good


def lateness_s(log: TokenLog, slo: Slo) -> Floats:
    """Per produced token: its time less its deadline."""
    deadline_s = log.rank() * slo.tbt_s
    deadline_s += slo.ttft_s  # in place: the arrays of a long run are large
    lateness: Floats = log.times_s - np.repeat(log.arrival_s, log.num_tokens)
    lateness -= deadline_s
    return lateness


def _on_time_tokens(log: TokenLog, lateness_s: Floats) -> Ints:
    on_time = lateness_s <= GRACE_S
    if (log.num_tokens > log.asked_tokens).any():
        on_time &= log.rank() < np.repeat(log.asked_tokens, log.num_tokens)
    counts = np.zeros(len(log), np.int64)
    if len(on_time):
        starts = log.start[log.started]
        counts[log.started] = np.add.reduceat(on_time, starts, dtype=np.int64)
    return counts


def _time_shares(log: TokenLog, slo: Slo, lateness_s: Floats) -> Floats:
    shares = np.where(log.completed & log.started, 1.0, 0.0)
    latest_s = log.largest(lateness_s, -np.inf)
    for row in np.flatnonzero(log.completed & (latest_s > GRACE_S)):
        start = log.start[row]
        times_s = log.times_s[start : start + log.num_tokens[row]] - log.arrival_s[row]
        shares[row] = _good_time_s(times_s.tolist(), slo.ttft_s, slo.tbt_s) / times_s[-1]
    return shares


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
