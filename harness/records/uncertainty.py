"""How far the statistics of one run can be trusted: 95 % intervals over its requests.

Neighbouring requests wait in the same queues, so that n requests tell less than n independent ones.
Each interval is that of independent samples, with the effective number of samples in place of n.
Pure functions over the values of requests, in the order of their arrival.
"""

from __future__ import annotations

from math import ceil, floor, sqrt
from typing import Any

import numpy as np

from harness.records.percentiles import PERCENTILES, min_samples
from harness.records.token_log import Bools, Floats, TokenLog

Z = 1.959964  # of a standard normal, 2.5 % lie above
DIRECT_LAGS = 32  # correlations up to this lag are computed one by one: most series need two


def effective_samples(values: Floats) -> float:
    """n / (1 + 2 sum of autocorrelations), of a series of n values; at least 1, at most n.

    The sum ends at the first two neighbouring lags whose correlations add up to less than 0 (the
    initial positive sequence of Geyer 1992).
    """
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return float(len(values))
    lags = min(DIRECT_LAGS, len(values) - 1)
    found = np.array([centred[:-lag] @ centred[lag:] for lag in range(1, lags + 1)]) / variance
    last = _first_negative(found)
    if last == lags and lags < len(values) - 1:
        spectrum = np.fft.rfft(centred, 2 * len(centred))
        found = np.fft.irfft(np.abs(spectrum) ** 2)[1 : len(values)] / variance
        last = _first_negative(found)
    inflated = 1 + 2 * float(found[:last].sum())
    return max(1.0, len(values) / max(1.0, inflated))


def of_latency(values: Floats) -> dict[str, list[float | None]]:
    """{mean and each percentile that has enough samples: its interval}. An end is None where the
    sample does not reach so far. Values that are not finite are left out."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return {}
    reach = Z * float(values.std(ddof=1)) / sqrt(effective_samples(values))
    mean = float(values.mean())
    found: dict[str, list[float | None]] = {"mean": [mean - reach, mean + reach]}
    ordered = np.sort(values)
    for percentile in PERCENTILES:
        if len(values) >= min_samples(percentile):
            share = percentile / 100
            above = (values > np.percentile(ordered, percentile)).astype(np.float64)
            half = Z * sqrt(share * (1 - share) / effective_samples(above))
            low, high = floor((share - half) * len(values)) - 1, ceil((share + half) * len(values))
            found[f"p{percentile:g}"] = [_at(ordered, low), _at(ordered, high)]
    return found


def of_share(flags: Bools) -> list[float]:
    """The interval of the share of requests that `flags` names, by Wilson's score."""
    count, share = effective_samples(flags.astype(np.float64)), float(flags.mean())
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) * Z / (1 + Z**2 / count)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def of_run(log: TokenLog, good: Bools) -> dict[str, Any]:
    """`intervals_95` of summary.json. good: which requests met the SLO."""
    shares, duration_s = of_share(good), log.duration_s
    rates = [share * len(good) / duration_s for share in shares] if duration_s > 0 else None
    return {
        "ttft_s": of_latency(log.ttft_s),
        "tpot_s": of_latency(log.tpot_s),
        "e2e_s": of_latency(log.e2e_s),
        "slo_attainment": {"request": shares},
        "goodput_per_s": rates,
    }


def _first_negative(correlations: Floats) -> int:
    """How many correlations come before the first pair of neighbours with a sum below 0."""
    even = len(correlations) // 2 * 2
    below = np.flatnonzero(correlations[:even].reshape(-1, 2).sum(axis=1) < 0)
    return 2 * int(below[0]) if len(below) else len(correlations)


def _at(ordered: Floats, rank: int) -> float | None:
    return float(ordered[rank]) if 0 <= rank < len(ordered) else None
