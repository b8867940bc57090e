"""How smoothly answers streamed: stalls, Etalon's fluidity index, Andes's QoE and smooth goodput.

Means and pooled percentiles of TBT hide a single long wait in the middle of an answer; these do
not. Pure functions over the token log.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.records.attainment import GRACE_S, lateness_s
from harness.records.slo import Slo
from harness.records.token_log import Floats, TokenLog

FLUID = 0.9  # the least index of a fluid request (Etalon: at most a tenth of the deadlines missed)
GOOD_QOE = 0.9  # the least acceptable QoE (Andes's threshold)


def summarise_stalls(log: TokenLog, stall_s: float) -> dict[str, Any]:
    """`stalls` of summary.json. A stall is a gap of more than `stall_s` seconds between two tokens
    of a request; the wait for its first token is none, nor is a wait that no token ended."""
    gaps_s = np.diff(log.times_s, prepend=0.0)
    gaps_s[log.start[log.started]] = 0.0  # a first token has none before it
    long = gaps_s > stall_s
    stalled = np.repeat(np.arange(len(log)), log.num_tokens)[long]
    return {
        "threshold_s": stall_s,
        "count": int(long.sum()),
        "seconds": float(gaps_s[long].sum()),
        "num_requests": len(np.unique(stalled)),
        "longest_s": float(gaps_s[long].max(initial=0.0)),
    }


def fluidity_indices(log: TokenLog, slo: Slo) -> Floats:
    """Each request's share of deadlines met (Etalon, arXiv 2407.07000, section 4; its code counts
    the same way).

    The first token is due slo.ttft_s after the arrival, each later one slo.tbt_s after the deadline
    before it. A token that is late by L misses 1 + floor(L / slo.tbt_s) deadlines, and the next
    deadlines count from it. Etalon measures a deadline of the first token for each prompt length;
    here it is the SLO's. Tokens asked for that never came missed their deadlines.
    """
    late_s = lateness_s(log, slo)
    missed = np.maximum(log.asked_tokens - log.num_tokens, 0).astype(np.float64)
    total = log.num_tokens + missed
    for row in np.flatnonzero(log.largest(late_s, -np.inf) > GRACE_S):
        own_s = late_s[log.start[row] : log.start[row] + log.num_tokens[row]]
        # Deadlines that count from a late token are later by its lateness, so that a token is late
        # by what it exceeds the latest before it.
        before_s = np.maximum.accumulate(np.append(0.0, own_s[:-1]))
        by_s = (own_s - before_s)[own_s > before_s + GRACE_S]
        misses = 1 + np.floor((by_s + GRACE_S) / slo.tbt_s)
        missed[row] += misses.sum()
        total[row] += misses.sum() - len(by_s)
    found: Floats = 1 - missed / total
    return found


def summarise_fluidity(log: TokenLog, slo: Slo) -> dict[str, float]:
    """`fluidity_index` of summary.json: over all requests, those that failed among them."""
    indices = fluidity_indices(log, slo)
    return {"mean": float(indices.mean()), "fluid_share": float((indices >= FLUID).mean())}


def qoe_of_requests(log: TokenLog, slo: Slo) -> Floats:
    """Each request's QoE (Andes, arXiv 2404.16283, section 3.1, as its code computes it): the area
    under the tokens that a reader has read by a time T, over that under the expected ones.

    A reader who has the tokens reads one in slo.tbt_s, from slo.ttft_s after the arrival on;
    expected is that no token is waited for. T is when the last token has been read. Where tokens
    asked for never came, T has no end, and the ratio of the areas is the share that came.
    """
    late_s = lateness_s(log, slo)
    found: Floats = np.where(log.num_tokens > 0, 1.0, 0.0)
    for row in np.flatnonzero(log.largest(late_s, -np.inf) > GRACE_S):
        count = int(log.num_tokens[row])
        own_s = late_s[log.start[row] : log.start[row] + count]
        # The reading of a token is behind by the most that it or one before it was late.
        behind_s = np.maximum.accumulate(np.maximum(own_s, 0.0))
        expected = count * behind_s[-1] + count**2 * slo.tbt_s / 2
        found[row] = 1 - behind_s.sum() / expected
    short = log.num_tokens < log.asked_tokens
    found[short] = (log.num_tokens / log.asked_tokens)[short]
    return found


def summarise_qoe(log: TokenLog, slo: Slo) -> dict[str, float]:
    """`qoe` of summary.json: over all requests, those that failed among them."""
    found = qoe_of_requests(log, slo)
    return {"mean": float(found.mean()), "good_share": float((found >= GOOD_QOE).mean())}


def smooth_goodput(log: TokenLog, slo: Slo) -> float | None:
    """Tokens/s, less what waiting took from their worth (arXiv 2410.14257): the sum over requests
    of n - α f(l), over the run's duration. None: it has none.

    n: the tokens that came. l: the most seconds by which one of them was behind the reader of
    `qoe_of_requests`. That paper leaves α and f to the user. Here α f(l) is l / slo.tbt_s, the
    tokens that the reader would have read meanwhile, so that it can be below 0.
    """
    idle_s = np.maximum(log.largest(lateness_s(log, slo), 0.0), 0.0)
    worth = float((log.num_tokens - idle_s / slo.tbt_s).sum())
    return worth / log.duration_s if log.duration_s > 0 else None
