"""What copies cost a device that they read or write: memory bandwidth (AQUA section 9.3, Fig. 10).

While copies take a share of the bandwidth, memory-bound work has what is left. A tensor-parallel
group waits for the device that has the least left. The run under way ends at its next step boundary
where that changes, and goes on at the other rate; an iteration with prompts keeps the rate that it
began with. Copies below SMALL cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache

from harness.cost.model import CostModel
from harness.device.location import Location, Place, members

SMALL = 0.02  # of the memory's bandwidth


def beside_copies(
    bytes_per_s: float, cost: Callable[[float], CostModel], use: Callable[[CostModel], None],
    interrupt: Callable[[], None],
) -> Callable[[Place, float], None]:  # fmt: skip
    """What is to be told that copies of so many bytes/s more on each device of a place begin or,
    below 0, end. `cost`: by the rivals (`harness.cost.law.Part`) that copies amount to."""
    copied_bytes_per_s = defaultdict[Location, float](float)
    cost_of, now = cache(cost), 0.0

    def change(place: Place, more_bytes_per_s: float) -> None:
        nonlocal now
        for device in members(place):
            copied_bytes_per_s[device] += more_bytes_per_s
        found = rivals(max(copied_bytes_per_s.values()) / bytes_per_s)
        if found != now:
            now = found
            use(cost_of(found))
            interrupt()

    return change


def rivals(share: float) -> float:
    """Memory-bound work takes 1 + this times as long beside copies that take `share` of the
    memory's bandwidth, below 1; rounded, so that few costs are made."""
    if share <= SMALL:
        return 0.0
    if share >= 1:
        raise ValueError(f"copies take {share:.2f} of the memory's bandwidth; valid: below 1")
    return round(share / (1 - share), 6)
