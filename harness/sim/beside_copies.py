"""What copies cost a device that they read or write: memory bandwidth (AQUA section 9.3, Fig. 10).

While copies take a share of the bandwidth, memory-bound work has what is left. A tensor-parallel
group waits for the device that has the least left. The run under way ends at its next step boundary
where that changes, and goes on at the other rate; an iteration with prompts keeps the rate that it
began with. Copies below SMALL cost nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from harness.cost.model import CostModel
from harness.device.location import Location, Place, members

SMALL = 0.02  # of the memory's bandwidth


class BesideCopies:
    """`cost`: by the rivals (`harness.cost.law.Part`) that copies amount to."""

    def __init__(
        self, bytes_per_s: float, cost: Callable[[float], CostModel],
        use: Callable[[CostModel], None], interrupt: Callable[[], None],
    ) -> None:  # fmt: skip
        self._bytes_per_s, self._cost, self._use, self._interrupt = (
            bytes_per_s,
            cost,
            use,
            interrupt,
        )
        self._copied_bytes_per_s = defaultdict[Location, float](float)
        self._rivals = 0.0
        self._costs: dict[float, CostModel] = {}

    def change(self, place: Place, bytes_per_s: float) -> None:
        """Copies of so much on each device of `place` begin or, below 0, end."""
        for device in members(place):
            self._copied_bytes_per_s[device] += bytes_per_s
        found = rivals(max(self._copied_bytes_per_s.values()) / self._bytes_per_s)
        if found == self._rivals:
            return
        self._rivals = found
        if found not in self._costs:
            self._costs[found] = self._cost(found)
        self._use(self._costs[found])
        self._interrupt()


def rivals(share: float) -> float:
    """Memory-bound work takes 1 + this times as long beside copies that take `share` of the
    memory's bandwidth, below 1; rounded, so that few costs are made."""
    if share <= SMALL:
        return 0.0
    if share >= 1:
        raise ValueError(f"copies take {share:.2f} of the memory's bandwidth; valid: below 1")
    return round(share / (1 - share), 6)
