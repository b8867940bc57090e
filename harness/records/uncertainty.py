"""How far the statistics of one run can be trusted: 95 % intervals over its requests.

Neighbouring requests wait in the same queues, so that n requests tell less than n independent ones.
Intervals of latencies are those of independent samples, with the effective number of samples in
place of n. Those of attainment, goodput and gaps are from a circular block bootstrap (Politis and
Romano 1992) over requests: gaps of one request are a cluster, which is drawn whole. Pure functions
over the values of requests, in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor, inf, log10, sqrt
from typing import Any

import numpy as np

from harness.records.attainment import Attained
from harness.records.percentiles import PERCENTILES, min_samples
from harness.records.token_log import Bools, Floats, Ints, TokenLog

Z = 1.959964  # of a standard normal, 2.5 % lie above
# The same of Student's t, by the degrees of freedom: a run does not import scipy.
STUDENTS = {
    1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 6: 2.44691, 8: 2.30600,
    10: 2.22814, 15: 2.13145, 20: 2.08596, 30: 2.04227, 60: 2.00030, inf: Z,
}  # fmt: skip
DIRECT_LAGS = 32  # correlations up to this lag are computed one by one: most series need two
RESAMPLES = 1000
SEED = 0  # of the resampling: the same run gives the same interval
CLUSTERS = 30  # resamples of fewer vary too little (Cameron, Gelbach and Miller 2008)


def effective_samples(values: Floats) -> float:
    """n / (1 + 2 sum of autocorrelations), of a series of n values; at least 1, at most n.

    The sum ends before the first of the pairs of lags 2 and 3, 4 and 5, … whose correlations add up
    to less than 0 (the initial positive sequence of Geyer 1992).
    """
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return float(len(values))
    lags = min(DIRECT_LAGS, len(values) - 1)
    found = np.array([centred[:-lag] @ centred[lag:] for lag in range(1, lags + 1)]) / variance
    last = _first_negative(found)
    if last == lags and lags < len(values) - 1:
        found = autocovariances(values)[1:] / variance
        last = _first_negative(found)
    inflated = 1 + 2 * float(found[:last].sum())
    return max(1.0, len(values) / max(1.0, inflated))


def autocovariances(values: Floats) -> Floats:
    """n times the autocovariance of a series of n values at each lag from 0 on."""
    spectrum = np.fft.rfft(values - values.mean(), 2 * len(values))
    found: Floats = np.fft.irfft(np.abs(spectrum) ** 2)[: len(values)]
    return found


def of_latency(values: Floats) -> dict[str, list[float | None]]:
    """{mean and each percentile that has enough samples: its interval}. An end is None where the
    sample does not reach so far. Values that are not finite are left out. The mean of values none
    of which is below 0 is not below 0."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return {}
    effective = effective_samples(values)
    reach = students(effective - 1) * float(values.std(ddof=1)) / sqrt(effective)
    mean, least = float(values.mean()), 0.0 if values.min() >= 0 else -inf
    found: dict[str, list[float | None]] = {"mean": [max(mean - reach, least), mean + reach]}
    ordered = np.sort(values)
    for percentile in PERCENTILES:
        if len(values) >= min_samples(percentile):
            share = percentile / 100
            above = (values > np.percentile(ordered, percentile)).astype(np.float64)
            half = Z * sqrt(share * (1 - share) / effective_samples(above))
            low, high = floor((share - half) * len(values)) - 1, ceil((share + half) * len(values))
            found[f"p{percentile:g}"] = [_at(ordered, low), _at(ordered, high)]
    return found


def students(freedom: float) -> float:
    """By how many standard errors a mean is off at most, in 95 of 100 cases: Student's t.
    Between the rows it is too large: by 2 % at most from two degrees on, below them by a fifth."""
    inverse = [1 / each for each in reversed(STUDENTS)]  # in which t is nearly linear
    return float(np.interp(1 / max(freedom, 1.0), inverse, list(reversed(STUDENTS.values()))))


def of_share(flags: Bools) -> list[float] | None:
    """The interval of the share of requests that `flags` [n] names."""
    return of_ratio(flags.astype(np.int64), np.ones(len(flags), np.int64))


def of_ratio(parts: Ints, wholes: Ints) -> list[float] | None:
    """The interval of sum(parts) / sum(wholes): a part of a whole of each of n requests.

    Blocks begin anywhere, and from the last request go on with the first; each resample has n
    requests. Their length follows from what each request adds to the ratio (part - ratio whole).
    Where all parts are whole or 0 resampling shows nothing: Wilson's score for n requests. None:
    resamples are all alike, and tell as little.
    """
    count, part, whole = len(parts), int(parts.sum()), int(wholes.sum())
    if part in (0, whole):
        reach = Z**2 / (count + Z**2)
        return [1 - reach, 1.0] if part else [0.0, reach]
    return _ends(parts, wholes)


def of_gaps(
    gaps_s: Floats, counts: Ints, known: Mapping[str, float | int | None]
) -> dict[str, list[float | None]]:
    """As `of_latency`, of gaps pooled over requests: `counts` [n] of each, one behind the other.
    `known`: their percentiles, as `distribution` gives them. Empty below CLUSTERS requests with a
    gap.

    The share of gaps above a percentile is a ratio of sums over requests. What blocks of requests
    tell of it are the ranks of two order statistics of all gaps (Woodruff 1952).
    """
    counts, total = counts[counts > 0], len(gaps_s)
    if len(counts) < CLUSTERS:
        return {}
    firsts = np.cumsum(counts) - counts
    mean = _ends(np.add.reduceat(gaps_s, firsts), counts)
    ranks: dict[str, tuple[int, int]] = {}
    for percentile in PERCENTILES:
        if (value := known[name := f"p{percentile:g}"]) is not None:
            # an answer has fewer than 2 ** 31 tokens, and sums of this type are the fast ones
            above = np.add.reduceat(gaps_s > value, firsts, dtype=np.int32).astype(np.int64)
            if (ends := of_ratio(above, counts)) is not None:
                share = float(above.sum()) / total
                low, high = (percentile / 100 - (end - share) for end in reversed(ends))
                ranks[name] = floor(low * total) - 1, ceil(high * total)
    within = sorted({rank for of_name in ranks.values() for rank in of_name if 0 <= rank < total})
    ordered = np.partition(gaps_s, within) if within else gaps_s  # at these ranks
    found: dict[str, list[float | None]] = {} if mean is None else {"mean": [*mean]}
    for name, of_name in ranks.items():
        found[name] = [_at(ordered, rank) for rank in of_name]
    return found


def _ends(parts: Ints | Floats, wholes: Ints) -> list[float] | None:
    """The interval of sum(parts) / sum(wholes) by resampling; None: resamples are all alike."""
    count = len(parts)
    length = block_length(parts - parts.sum() / wholes.sum() * wholes)
    blocks, rest = divmod(count, length)
    rng = np.random.default_rng(SEED)
    starts = rng.integers(count, size=(RESAMPLES, blocks), dtype=np.int32)
    last = rng.integers(count, size=RESAMPLES)

    def resampled(values: Ints | Floats) -> Floats:
        before = np.concatenate([[0], np.cumsum(np.concatenate([values, values[:length]]))])
        in_block, in_rest = (before[n : n + count] - before[:count] for n in (length, rest))
        sums: Floats = in_block[starts].sum(axis=1) + in_rest[last]
        return sums

    ratios = resampled(parts) / resampled(wholes)
    if not np.ptp(ratios):
        return None
    ends: list[float] = np.quantile(ratios, (0.025, 0.975)).tolist()
    return ends


def block_length(values: Floats) -> int:
    """Requests of a block, by Politis and White 2004 (with the correction of 2009): (1.5 n (G / g)
    ** 2) ** (1/3), where g sums autocovariances and G lags times autocovariances, under a flat-top
    window of twice the first lag with a correlation below 2 sqrt(log10(n) / n). At least the cube
    root of n, at most a quarter of n."""
    count = len(values)
    least, most = int(np.cbrt(count)), max(1, count // 4)
    products = autocovariances(values)
    faint = np.flatnonzero(products <= 2 * sqrt(log10(count) / count) * products[0])
    if not len(faint):
        return most
    lags = np.arange(1, min(2 * int(faint[0]), count - 1) + 1)
    windowed = 2 * products[lags] * np.minimum(1, 2 - 2 * lags / (2 * faint[0]))
    spread = float(products[0] + windowed.sum())
    if spread <= 0:
        return least
    longest = np.cbrt(1.5 * count) * (abs(float(lags @ windowed)) / spread) ** (2 / 3)
    return min(max(least, ceil(float(longest))), most)


def of_run(
    log: TokenLog,
    attained: Attained,
    known: Mapping[str, Mapping[str, float | int | None]],
    *,
    times_known: bool,
) -> dict[str, Any]:
    """`intervals_95` of summary.json. known: `tbt_s` and `itl_chunk_s` of it. times_known: of
    single tokens."""
    shares, duration_s = of_share(attained.good), log.duration_s
    tokens = of_ratio(attained.on_time_tokens, attained.asked_tokens) if times_known else None
    rated = shares is not None and duration_s > 0
    rates = [share * len(log) / duration_s for share in shares or ()] if rated else None
    gaps: dict[str, list[float | None]] = {}
    chunks = gaps
    if times_known:
        gaps = chunks = of_gaps(log.tbt_s(), log.tbt_counts, known["tbt_s"])
        if not log.token_chunks:
            chunks = of_gaps(log.itl_chunk_s(), log.itl_chunk_counts(), known["itl_chunk_s"])
    return {
        "ttft_s": of_latency(log.ttft_s),
        "tpot_s": of_latency(log.tpot_s),
        "tbt_s": gaps,
        "itl_chunk_s": dict(chunks),
        "e2e_s": of_latency(log.e2e_s),
        "slo_attainment": {"token": tokens, "request": shares},
        "goodput_per_s": rates,
    }


def _first_negative(correlations: Floats) -> int:
    """How many of the `correlations`, from lag 1 on, come before the first of the pairs of lags 2
    and 3, 4 and 5, … with a sum below 0."""
    odd = (len(correlations) - 1) // 2 * 2 + 1
    below = np.flatnonzero(correlations[1:odd].reshape(-1, 2).sum(axis=1) < 0)
    return 1 + 2 * int(below[0]) if len(below) else len(correlations)


def _at(ordered: Floats, rank: int) -> float | None:
    return float(ordered[rank]) if 0 <= rank < len(ordered) else None
