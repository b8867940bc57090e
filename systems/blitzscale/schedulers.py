"""How many layers of each batch the target of a live pair runs while it loads (§5.2).

overlap      a whole batch runs on one of the two instances (Fig. 9 (c)): not live
best_effort  the layers that are loaded when the target comes to a batch, at most half (Fig. 15 (a))
ilp          eq. 1 for the batches that wait when the first layer is there; ilp_free for batches
             that come later, and for all batches until the program is solved
ilp_free     no limits (Fig. 16)

The functions give limits for `timeline.replay`; `Limits` asks them while a pair runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.clock import Loop
from systems.blitzscale.config import InFlight
from systems.blitzscale.ilp import ilp
from systems.blitzscale.timeline import PairTimes, replay

A_DOZEN = 12  # batches of one program: "which is a dozen of so in practice" (§5.2)


def overlap(times: PairTimes) -> list[int]:
    """Loading beside inference within one instance (Fig. 9 (c), PipeSwitch): a whole batch runs on
    one of the two instances, where it ends first.

    Not live: the new instance ends no batch before its last layer is there.
    """
    limits: list[int] = []
    for i in range(len(times.layer_s)):
        until = replace(times, layer_s=times.layer_s[: i + 1], hop_s=times.hop_s[: i + 1])
        source_s, target_s = (
            replay(until, [*limits, limit]).ends_s[i] for limit in (0, times.num_layers)
        )
        limits.append(0 if source_s <= target_s else times.num_layers)
    return limits


def best_effort(times: PairTimes) -> list[int]:
    """Fig. 15 (a): when the target comes to a batch, it runs the layers that are loaded, at most
    half of all layers. It does not come back to the batch."""
    limits = []
    now_s = 0.0
    for layer_s in times.layer_s:
        limits.append(best_effort_limit(times.loaded(now_s), times.num_layers))
        now_s += limits[-1] * layer_s
    return limits


def best_effort_limit(loaded: int, num_layers: int, in_time: int | None = None) -> int:
    """The limit of the batch that the target comes to now.

    in_time: after so many layers, at least one, its activations arrive when the source is free;
    None: activations take no time, as in the paper.
    """
    most = min(loaded, num_layers // 2)
    return most if in_time is None else min(most, max(1, in_time))


def ilp_free(times: PairTimes) -> list[None]:
    """Fig. 16: no limits; the rules of `zigzag` decide."""
    return [None] * len(times.layer_s)


class Limits:
    """The limits by one scheduler.

    solving_s: time charged for solving the program. A live run that is faster waits for the rest,
    so that simulated and live runs decide at the same time. in_flight: how many batches a pair may
    have under way at once; None: as many as fit.
    """

    def __init__(
        self, scheduler: str, solving_s: float, loop: Loop, in_flight: InFlight | None = None
    ) -> None:
        self.scheduler, self._solving_s, self._loop = scheduler, solving_s, loop
        self.in_flight = in_flight
        self.plans = scheduler in ("overlap", "ilp")  # when the first layer is there
        self.begins_later = scheduler != "overlap"  # the target takes batches that come after that

    def at_start(self, loaded: int, num_layers: int, in_time: int | None) -> int | None:
        """The limit of a batch that the target begins without one. in_time: as in
        `best_effort_limit`."""
        if self.scheduler == "best_effort":
            return best_effort_limit(loaded, num_layers, in_time)
        return None

    async def planned(self, times: PairTimes) -> Sequence[int | None]:
        """The limits of the first batches, in order. The first layer is there."""
        begun_s, rest = self._loop.now, len(times.layer_s) - A_DOZEN
        dozen = replace(times, layer_s=times.layer_s[:A_DOZEN], hop_s=times.hop_s[:A_DOZEN])
        if self.scheduler == "overlap":
            return [*overlap(dozen), *[0] * rest]
        found = ilp(dozen)
        left_s = self._solving_s - (self._loop.now - begun_s)
        if left_s > 0:
            await self._loop.sleep(left_s)
        return found
