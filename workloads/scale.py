"""Changing a trace's rate while keeping its bursts.

`preserve`, slower: thinning, each request kept with probability `rate`. Faster: every row is
repeated, a fractional rest by chance. A copy lands uniformly in the gap before the next later
arrival, at most `max_jitter_s` after its original: repeating the timestamp itself would turn single
arrivals into batches that no client sent, and an unbounded shift would fill silences. Either way
the pattern over seconds and minutes stays, and a copy has its original's lengths and model.
`stretch` divides the timestamps, so that bursts become shorter or longer with the rest.

Copies are requests that the dataset does not have, whether they come from a higher rate or from a
burst: the schedule then says REQUESTS REPEATED. Thinning and stretching keep the dataset's requests
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.configuration.checks import at_least, one_of, positive
from harness.schedule import Synthetic
from workloads.arrivals import BurstConfig, describe_burst
from workloads.trace import Floats, Trace, require_feasible, stream

HOW = ("preserve", "stretch")


@dataclass(kw_only=True, slots=True)
class ScaleConfig:
    to_rate_per_s: float | None  # of the first num_requests rows, by a stretch; null: as it is
    rate: float  # then a factor on the trace's arrival rate, or on a drawn process's
    how: str  # one of HOW; a drawn process is drawn at the new rate, whichever is set
    max_jitter_s: float  # preserve: a copy arrives at most so long after its original

    def check(self) -> None:
        positive(self, "workload.scale", "rate", "to_rate_per_s")
        at_least(self, 0, "workload.scale", "max_jitter_s")
        one_of(self.how, HOW, "workload.scale.how")


def stretched_to(trace: Trace, rate_per_s: float, num_requests: int | None) -> Trace:
    """Timestamps times one factor, so that the mean rate from the first row to the last, or to the
    `num_requests`th where there are more, is `rate_per_s`. No row is left out: whatever scales
    further may need those after it to reach `num_requests`."""
    first = trace.take(slice(0, num_requests))
    factor = rate_per_s / first.mean_rate_per_s()
    stretched = replace(trace, arrival_s=trace.arrivals() / factor)
    whose = f" in the first {len(first)}" if len(first) < len(trace) else ""
    return stretched.labelled(
        f"stretched to {rate_per_s:g} requests/s{whose}: timestamps divided by {factor:.4g}"
    )


def scaled(trace: Trace, config: ScaleConfig, seed: int) -> Trace:
    rate = config.rate
    if rate == 1:
        return trace
    if config.how == "stretch":
        stretched = replace(trace, arrival_s=trace.arrivals() / rate)
        return stretched.labelled(f"stretched: timestamps divided by {rate:g}")
    step = f"{'thinned' if rate < 1 else 'upscaled'} to x{rate:g}"
    factor = np.full(len(trace), rate)
    require_feasible(rate * len(trace), f"workload.scale.rate={rate:g}")
    return resampled(trace, factor, config.max_jitter_s, seed, "scale", step)


def with_burst(trace: Trace, burst: BurstConfig, max_jitter_s: float, seed: int) -> Trace:
    """The trace's own rate times `burst.factor` within the burst, by the rule of `preserve`."""
    inside = burst.has(trace.arrivals())
    num_inside = burst.factor * float(inside.sum())
    require_feasible(num_inside, f"workload.arrivals.burst.factor={burst.factor:g}")
    factor = np.where(inside, burst.factor, 1.0)
    step = f"burst{describe_burst(burst)}"
    return resampled(trace, factor, max_jitter_s, seed, "burst", step)


def resampled(
    trace: Trace, factor: Floats, max_jitter_s: float, seed: int, purpose: str, step: str
) -> Trace:
    """Row i `factor[i]` times in the mean. Smaller factors keep subsets of what larger keep.

    The label is `step` and how many were copied or left out.
    """
    arrival_s = trace.arrivals()
    whole = np.floor(factor).astype(np.int64)
    chance = stream(seed, f"{purpose}.keep").random(len(trace))
    copies = whole + (chance < factor - whole)
    rows = np.repeat(np.arange(len(trace)), copies)
    is_copy = np.append(False, rows[1:] == rows[:-1])[: len(rows)]
    num_copies = int(is_copy.sum())
    jitter = stream(seed, f"{purpose}.jitter").random(num_copies)
    times = arrival_s[rows]
    times[is_copy] += jitter * room_s(arrival_s, max_jitter_s)[rows[is_copy]]
    order = np.argsort(times, kind="stable")
    changed = replace(trace.take(rows[order]), arrival_s=times[order])
    if num_copies:
        added = f"{num_copies} of {len(changed)} requests are copies"
        drawn = f"{added}, up to {max_jitter_s:g} s later"
    else:
        drawn = f"{len(trace) - len(changed)} of {len(trace)} requests left out at random"
    kinds = [Synthetic.REQUESTS_REPEATED] if num_copies else []
    return changed.labelled(f"{step}: {drawn}", *kinds)


def room_s(arrival_s: Floats, max_jitter_s: float) -> Floats:
    """How much later a copy of each row may arrive: before the next arrival at another time, as
    rows of one time (whole-second timestamps) would leave no room. After the last time there is no
    next: the median gap stands in for it, and `max_jitter_s` where all rows have one time."""
    times, which = np.unique(arrival_s, return_inverse=True)
    gaps = np.diff(times)
    after_last = np.median(gaps) if len(gaps) else max_jitter_s
    room: Floats = np.minimum(np.append(gaps, after_last), max_jitter_s)[which]
    return room
