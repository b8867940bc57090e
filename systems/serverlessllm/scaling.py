"""ServerlessLLM's decisions: how many instances a model should have, on which device the next one
starts, and whose turn it is. Pure functions; the paper's policy and its repository's constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


def desired_instances(num_requests: int, concurrency: int, max_instances: int) -> int:
    """Enough for all of a model's requests, queued and running, at `concurrency` each."""
    return min(-(-num_requests // concurrency), max_instances)


@dataclass(slots=True, frozen=True)
class Slot:
    """A device as a place for a new instance. `free_s`: when it may be given away; inf: unknown,
    it is loading or has requests. `last_used_s`: when it last had one."""

    free_s: float
    last_used_s: float
    load_s: float  # of the model in question, onto this device


def free_at(busy: bool, idle_since_s: float, keep_alive_s: float) -> float:
    """When a device may be given away: never while it is busy, else after its keep-alive."""
    return inf if busy else idle_since_s + keep_alive_s


def cheapest(slots: Sequence[Slot], now_s: float) -> int | None:
    """The device with the least start-up latency: waiting for it, then loading onto it. Equal
    ones: the least recently used. None: every device is taken for an unknown time."""
    latency_s = [max(slot.free_s - now_s, 0.0) + slot.load_s for slot in slots]
    best = min(range(len(slots)), key=lambda i: (latency_s[i], slots[i].last_used_s), default=None)
    return None if best is None or latency_s[best] == inf else best
