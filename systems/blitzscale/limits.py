"""How many layers of each batch the target of a live pair runs, by the configured scheduler (§5.2).

overlap      a whole batch runs on one of the two instances (Fig. 9 (c)): not live
best_effort  the layers that are loaded when the target comes to a batch, at most half (Fig. 15 (a))
ilp          eq. 1 for the batches that wait when the first layer is there; ilp_free for batches
             that come later, and for all batches until the program is solved
ilp_free     no limits (Fig. 16)
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Loop
from systems.blitzscale.ilp import ilp
from systems.blitzscale.schedulers import best_effort_limit, overlap
from systems.blitzscale.timeline import Pair

SCHEDULERS = ("overlap", "best_effort", "ilp", "ilp_free")
A_DOZEN = 12  # batches of one program: "which is a dozen of so in practice" (§5.2)


class Limits:
    """The limits by one scheduler.

    solving_s: time charged for solving the program. A live run that is faster waits for the rest,
    so that simulated and live runs decide at the same time.
    """

    def __init__(self, scheduler: str, solving_s: float, loop: Loop) -> None:
        self.scheduler, self._solving_s, self._loop = scheduler, solving_s, loop

    @property
    def plans(self) -> bool:
        """Whether it plans for all waiting batches when the first layer is there."""
        return self.scheduler in ("overlap", "ilp")

    @property
    def begins_later(self) -> bool:
        """Whether the target takes batches that come after the plan."""
        return self.scheduler != "overlap"

    def at_start(self, loaded: int, num_layers: int, in_time: int | None) -> int | None:
        """The limit of a batch that the target begins without one. in_time: as in
        `best_effort_limit`."""
        if self.scheduler == "best_effort":
            return best_effort_limit(loaded, num_layers, in_time)
        return None

    async def planned(
        self, num_layers: int, layer_s: Sequence[float], ready_s: Sequence[float],
        source_free_s: float, hop_s: Sequence[float],
    ) -> Sequence[int | None]:  # fmt: skip
        """The limits of the first batches, in order. Times are in seconds from now; the first layer
        is there."""
        begun_s = self._loop.now
        pair = Pair(
            num_layers=num_layers, layer_s=tuple(layer_s[:A_DOZEN]),
            ready_s=tuple(max(0.0, each) for each in ready_s),
            source_free_s=max(0.0, source_free_s), hop_s=tuple(hop_s[:A_DOZEN]),
        )  # fmt: skip
        if self.scheduler == "overlap":
            rest = max(0, len(layer_s) - A_DOZEN)
            return [*overlap(pair), *[0] * rest]
        found = ilp(pair, time_limit_s=1.0)
        left_s = self._solving_s - (self._loop.now - begun_s)
        if left_s > 0:
            await self._loop.sleep(left_s)
        return found
