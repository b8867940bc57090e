"""Which new instances serve live, and with which partner (§5.2, "Selecting instances").

A pair needs an overloaded instance and a chain's tail, which forwards nothing, so that its egress
is free for KV. It also needs a reason: with a stop-the-world load a request would miss its SLO. The
paper judges that by profiles of its Fig. 3; here it is computed from the backlog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True, frozen=True)
class Overloaded:
    """A serving instance and its work, in seconds of its own time."""

    name: str
    backlog_s: float  # queued and running
    arriving: float  # seconds of work that arrive per second; 1: as much as it can do


@dataclass(slots=True, frozen=True)
class LivePair:
    """Names of two instances."""

    source: str  # overloaded
    target: str  # loading


def stop_latency_s(instance: Overloaded, load_s: float) -> float:
    """The longest latency of requests that arrive before the new instance is loaded, in seconds.

    The new instance helps only after `load_s`; it then takes half of the remaining work. Latency is
    piecewise linear in the time of arrival. So three arrivals are enough: now, the load's end, and
    the first request that outlasts the load.
    """
    arrivals_s = [0.0, load_s]
    if instance.backlog_s < load_s < instance.backlog_s + instance.arriving * load_s:
        arrivals_s.append((load_s - instance.backlog_s) / instance.arriving)
    return max(_latency_s(instance, load_s, at_s) for at_s in arrivals_s)


def _latency_s(instance: Overloaded, load_s: float, at_s: float) -> float:
    """Latency of a request that arrives at `at_s`."""
    ahead_s = max(0.0, instance.backlog_s + (instance.arriving - 1) * at_s)
    alone_s = load_s - at_s
    return ahead_s if ahead_s <= alone_s else (ahead_s + alone_s) / 2


def live_pairs(
    tails_s: Mapping[str, float], overloaded: Iterable[Overloaded], slo_s: float
) -> list[LivePair]:
    """Pairs each overloaded instance with the slowest tail that is left, most backlog first.

    tails_s: {tail that may serve live: seconds that it still loads}. There is a pair only if a
    stop-the-world load of the tail would break `slo_s`. If it would not for one instance, it would
    not for instances with less backlog.
    """
    tails = sorted(tails_s.items(), key=lambda each: (-each[1], each[0]))
    pairs: list[LivePair] = []
    for instance in sorted(overloaded, key=lambda each: (-each.backlog_s, each.name)):
        if len(pairs) < len(tails):
            name, load_s = tails[len(pairs)]
            if stop_latency_s(instance, load_s) > slo_s:
                pairs.append(LivePair(instance.name, name))
    return pairs
