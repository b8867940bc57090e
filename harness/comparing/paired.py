"""Differences between two arms, with an interval each.

Requests are resampled, the same ones of both runs, so that what a schedule does to both cancels
out; in blocks, since neighbours wait in the same queues (circular block bootstrap, Politis and
Romano 1992). With several seeds or repeats a difference is the mean over pairs of runs, and
Student's t gives an interval, too; the wider of both ends counts, since a seed that changes little
of a recorded trace would make t's too narrow. A rate's interval takes the duration of each run as
given, so that a single pair of simulated runs does not judge it. An end is cut where the other's
value would lie below 0, or a share above 1, with the reference's as measured: t on differences
knows of no such bound.

The effect is Cohen's d of pairs: the mean of a metric's differences by request over their standard
deviation. It does not grow with the number of requests, as the certainty of a difference does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any

import numpy as np

from harness.records.attainment import Attained
from harness.records.interval import CONFIDENCE, interval
from harness.records.percentiles import min_samples
from harness.records.run_folder import FinishedRun
from harness.records.slo import Slo
from harness.records.token_log import Floats, Ints
from harness.records.uncertainty import SEED, block_length

Statistic = Callable[[Floats], Any]  # a float, or numpy's
Ends = tuple[float, float]
P99: Statistic = partial(np.percentile, q=99)
RESAMPLES = 2000
RATE = "1/s"  # the unit of what a run has one duration for


@dataclass(frozen=True, slots=True)
class Metric:
    """`key`: its name in summary.json. `of`: the values of a run's requests, as `measured` names
    them."""

    name: str
    key: str
    unit: str
    of: str
    statistic: Statistic
    higher_is_better: bool = False
    min_requests: int = 2

    @property
    def of_the_slo(self) -> bool:
        return self.of in ("good", "on_time", "good_per_s")

    def value(self, run: Mapping[str, Floats]) -> float:
        """The metric of one run, of which `measured` gave `run`; nan: no request has it."""
        values = run[self.of][np.isfinite(run[self.of])]
        return float(self.statistic(values)) if len(values) else nan


METRICS = (
    Metric("TTFT mean", "ttft_s.mean", "s", "ttft_s", np.mean),
    Metric("TTFT P50", "ttft_s.p50", "s", "ttft_s", np.median, min_requests=min_samples(50)),
    Metric("TTFT P99", "ttft_s.p99", "s", "ttft_s", P99, min_requests=min_samples(99)),
    Metric("TPOT mean", "tpot_s.mean", "s", "tpot_s", np.mean),
    Metric("E2E mean", "e2e_s.mean", "s", "e2e_s", np.mean),
    Metric("SLO, requests", "slo_attainment.request", "share", "good", np.mean, True),
    Metric("SLO, tokens", "slo_attainment.token", "share", "on_time", np.mean, True),
    Metric("goodput/s", "goodput_per_s", RATE, "good_per_s", np.mean, True),
    Metric("tokens/s", "output_throughput_tokens_per_s", RATE, "tokens_per_s", np.mean, True),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of both arms, over pairs, and how far they differ: other minus reference.

    low, high: the 95 % interval.
    """

    metric: Metric
    value_of_reference: float
    value_of_other: float
    difference: float
    low: float
    high: float
    num_requests: int  # that have the value in both runs, over all pairs; others are left out
    effect: float | None  # Cohen's d of pairs; None: of a percentile or rate, or all differ alike
    floor: float | None = None  # what repeats of one run differ by; None: not measured, simulated
    # Where real engines' values of the reference and of the other may lie; None: no band.
    bands: tuple[Ends, Ends] | None = None
    verdict: str = ""  # better, worse, tie or cannot tell, and why not if not for the interval


def measured(run: FinishedRun, slo: Slo) -> dict[str, Floats]:
    """The values that METRICS are of. Per request, in the schedule's order: nan where there is
    none, e.g. the TPOT of a request that failed."""
    log, known = run.log, run.times_known
    attained = Attained.of(log, slo, times_known=known)
    good = attained.good.astype(np.float64)
    share_s = log.duration_s / len(log) or nan  # the mean over requests is then the run's rate
    on_time = _as_means(attained.on_time_tokens, attained.asked_tokens)
    return {
        "ttft_s": log.ttft_s,
        "tpot_s": log.tpot_s,
        "e2e_s": log.e2e_s,
        "good": good,
        "on_time": on_time if known else np.full(len(log), nan),
        "good_per_s": good / share_s,
        "tokens_per_s": log.num_tokens / share_s,
    }


def differences(
    reference: Sequence[dict[str, Floats]], other: Sequence[dict[str, Floats]]
) -> list[Difference]:
    """One for each metric that has enough requests; what `measured` gives of each pair's runs."""
    found = []
    for metric in METRICS:
        values = [
            _in_both(first[metric.of], second[metric.of])
            for first, second in zip(reference, other, strict=True)
        ]
        if min(len(each) for each, _ in values) < metric.min_requests:
            continue
        of_pairs = np.array([[metric.statistic(arm) for arm in pair] for pair in values])
        by_pair = of_pairs[:, 1] - of_pairs[:, 0]
        ends = [resampled(values, metric.statistic)]
        if len(values) > 1:
            over = interval(by_pair.tolist())
            assert over.half is not None
            ends.append((over.mean - over.half, over.mean + over.half))
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        first, second = of_pairs.mean(axis=0).tolist()
        low = max(low, -first)
        high = min(high, 1 - first) if metric.unit == "share" else high
        count = sum(len(each) for each, _ in values)
        mean = float(by_pair.mean())
        by_request = np.concatenate([second - first for first, second in values])
        deviation, of_means = float(by_request.std(ddof=1)), metric.statistic is np.mean
        varies = deviation > 1e-9 * abs(mean)  # more than by rounding
        one_by_one = of_means and metric.unit != RATE and varies
        effect = float(by_request.mean()) / deviation if one_by_one else None
        found.append(Difference(metric, first, second, mean, low, high, count, effect))
    return found


def resampled(pairs: Sequence[tuple[Floats, Floats]], statistic: Statistic) -> tuple[float, float]:
    """The 95 % interval of the mean over pairs of the statistic's difference.

    A pair holds a value of each request in both runs, in the order of arrival. Blocks lie at the
    same places in all pairs: seeds of one recorded trace have much the same requests.
    """
    rng = np.random.default_rng(SEED)
    count = max(len(first) for first, _ in pairs)
    block = max(block_length(second - first) for first, second in pairs)
    found = np.zeros(RESAMPLES)
    for i in range(RESAMPLES):
        places = rng.random(-(-count // block))
        for first, second in pairs:
            starts = (places * len(first)).astype(np.int64)
            rows = (starts[:, None] + np.arange(block)).ravel()[: len(first)] % len(first)
            found[i] += (statistic(second[rows]) - statistic(first[rows])) / len(pairs)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, (tail, 1 - tail))
    return float(low), float(high)


def _as_means(parts: Ints, wholes: Ints) -> Floats:
    """Values of requests whose mean is sum(parts) / sum(wholes). Each is off that by what its
    request adds to the ratio, so that resamples of the mean vary as those of the ratio do."""
    ratio = parts.sum() / wholes.sum()
    found: Floats = ratio + (parts - ratio * wholes) / wholes.mean()
    return found


def _in_both(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    kept = np.isfinite(first) & np.isfinite(second)
    return first[kept], second[kept]
