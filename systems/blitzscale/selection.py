"""Which new instances serve live, and with whom (§5.2, "Selecting instances").

A pair needs an overloaded instance, a chain's tail (it forwards nothing, so KV has its egress), and
a reason: with a stop-the-world load some request would miss its SLO. The paper judges that by
profiles of its Fig. 3; here it is computed from the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, frozen=True)
class Overloaded:
    """A serving instance and what it has to do, in seconds of its own work."""

    name: str
    backlog_s: float  # queued and running
    arriving: float  # work that arrives, in seconds per second; 1: just what it can do


@dataclass(slots=True, frozen=True)
class LivePair:
    source: str  # overloaded
    target: str  # loading


def stop_latency_s(instance: Overloaded, load_s: float) -> float:
    """The longest that a request waits and runs, of those that come before the new instance is
    loaded, after `load_s`; only then it helps, and takes half of what is left.

    Between now, the load's end, and the moment from which requests outlast the load, latency is
    linear in the time of arrival.
    """
    arrivals_s = [0.0, load_s]
    if instance.backlog_s < load_s < instance.backlog_s + instance.arriving * load_s:
        arrivals_s.append((load_s - instance.backlog_s) / instance.arriving)
    return max(_latency_s(instance, load_s, at_s) for at_s in arrivals_s)


def _latency_s(instance: Overloaded, load_s: float, at_s: float) -> float:
    """Of a request that comes at `at_s`."""
    ahead_s = max(0.0, instance.backlog_s + (instance.arriving - 1) * at_s)
    alone_s = load_s - at_s
    return ahead_s if ahead_s <= alone_s else (ahead_s + alone_s) / 2


def live_pairs(
    tails_s: Mapping[str, float], overloaded: Iterable[Overloaded], slo_s: float
) -> list[LivePair]:
    """For each overloaded instance, most backlog first, the slowest tail that is left and whose
    stop-the-world load would break `slo_s`. `tails_s`: how long each tail that may serve live goes
    on loading. A tail that is too fast for one is so for those with less to do.
    """
    tails = sorted(tails_s.items(), key=lambda each: (-each[1], each[0]))
    pairs: list[LivePair] = []
    for instance in sorted(overloaded, key=lambda each: (-each.backlog_s, each.name)):
        if len(pairs) < len(tails):
            name, load_s = tails[len(pairs)]
            if stop_latency_s(instance, load_s) > slo_s:
                pairs.append(LivePair(instance.name, name))
    return pairs
