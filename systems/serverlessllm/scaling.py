"""ServerlessLLM's scaling decisions: how many instances a model should have, and on which device
the next one starts. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf


def desired_instances(num_requests: int, concurrency: int, max_instances: int) -> int:
    """How many instances serve all requests of a model, queued and running, at `concurrency` each;
    at most `max_instances`."""
    return min(-(-num_requests // concurrency), max_instances)


@dataclass(slots=True, frozen=True)
class Slot:
    """A device as a place for a new instance."""

    free_s: float  # when it may be given away; inf: unknown, it is loading or has requests
    last_used_s: float  # when it last had a request
    load_s: float  # seconds to load the model onto this device


def free_at(busy: bool, idle_since_s: float, keep_alive_s: float) -> float:
    """When a device may be given away: after its keep-alive; inf while it is busy."""
    return inf if busy else idle_since_s + keep_alive_s


def cheapest(slots: Sequence[Slot], now_s: float) -> int | None:
    """The index of the slot with the least start-up latency: wait for the device + load.

    Among equals the least recently used. None if every device is taken for an unknown time.
    """
    latency_s = [max(slot.free_s - now_s, 0.0) + slot.load_s for slot in slots]
    best = min(range(len(slots)), key=lambda i: (latency_s[i], slots[i].last_used_s), default=None)
    return None if best is None or latency_s[best] == inf else best
