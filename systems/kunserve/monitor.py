"""When to drop parameters and when to restore them (§4.3, "Online monitor and drop trigger").

The preprint has a rule for the drop: "when the future KVCache usage is about to exceed the
available HBM in one second", from two rates. Of the restore it says only that demand has decreased;
the rule here is ours. Pure: time and bytes come in, a decision comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.configuration.checks import at_least, one_of, positive
from systems.serving.load import Load

Decision = Literal["drop", "restore"] | None
QUEUES = ("all", "first", "plan")


class Sample(NamedTuple):
    """One group at one time."""

    time_s: float
    demand_bytes: int  # KV in use, and KV that queued requests need (`MonitorConfig.queue`)
    capacity_bytes: int  # memory for KV, used or free
    planned_bytes: int = 0  # the part of the demand that counts in R and triggers no drop


@dataclass(kw_only=True, slots=True)
class MonitorConfig:
    """Raises ValueError for values out of range."""

    horizon_s: float  # how far demand is extrapolated: 1 s (§4.3)
    window_s: float  # over which rates are taken; not in the paper
    # Demand may fill this share of the KV memory after a restore; not in the paper.
    restore_share: float
    calm_s: float  # how long a restore must have been due; not in the paper
    # Which queued requests count as demand. all: each, as R is "to hold the queued requests"
    # (§4.1). first: the head of the line, as Fig. 1 (b) and Llumnix count (§2.2). plan: each in R,
    # none in the trigger, which compares "used KVCache vs. available HBM" (§4.3 by its letter).
    queue: str

    def __post_init__(self) -> None:
        positive(self, "system.monitor", "horizon_s", "window_s")
        at_least(self, 0, "system.monitor", "calm_s")
        one_of(self.queue, QUEUES, "system.monitor.queue")
        if not 0 < self.restore_share < 1:
            raise ValueError(
                f"system.monitor.restore_share={self.restore_share} must be between 0 and 1, "
                "exclusive: at 1 a restore would leave no room for the demand that it found"
            )


class Monitor:
    """One group's history since its memory last changed by a drop or a restore."""

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._samples: deque[Sample] = deque()
        self._calm_since_s: float | None = None

    def reset(self) -> None:
        """Forgets the history, after a drop or a restore: the step in the memory is not a rate."""
        self._samples.clear()
        self._calm_since_s = None

    def observe(self, sample: Sample, restored_bytes: int | None = None) -> Decision:
        """Adds one sample, later than all before; returns what to do now, or None.

        restored_bytes: the group's KV memory after a restore; None: it has all parameters.
        """
        self._samples.append(sample)
        while self._samples[0].time_s < sample.time_s - self._config.window_s:
            self._samples.popleft()
        if self._ahead(lambda s: s.demand_bytes - s.planned_bytes - s.capacity_bytes) >= 0:
            self._calm_since_s = None
            return "drop"
        if restored_bytes is None or not self._calm(restored_bytes):
            self._calm_since_s = None
            return None
        if self._calm_since_s is None:
            self._calm_since_s = sample.time_s
        return "restore" if sample.time_s - self._calm_since_s >= self._config.calm_s else None

    def shortage_bytes(self) -> float:
        """Demand minus KV memory at the horizon; negative if there will be room."""
        return self._ahead(lambda s: s.demand_bytes - s.capacity_bytes)

    def _calm(self, restored_bytes: int) -> bool:
        """Whether demand is low, and with its growth will be low at the horizon.

        Growth is allowed: requests that decode always grow, so a rule of no growth would wait for
        them to end.
        """
        demand = max(self._samples[-1].demand_bytes, self._ahead(lambda s: s.demand_bytes))
        return demand <= self._config.restore_share * restored_bytes

    def _ahead(self, number: Callable[[Sample], int]) -> float:
        """A number of the samples at the horizon, extrapolated at its rate over the window.

        If the history is shorter than the window, it counts as level before: two samples that are
        close in time are no trend.
        """
        first, last = number(self._samples[0]), number(self._samples[-1])
        return last + (last - first) / self._config.window_s * self._config.horizon_s


def queued_blocks(load: Load, queue: str) -> int:
    """KV blocks that a group's queued requests need. queue: which count, `MonitorConfig.queue`."""
    return load.first_blocks if queue == "first" else load.queued_blocks


def required_bytes(shortages_bytes: Sequence[float]) -> int:
    """R of §4.1: the sum of what each group will lack.

    One group's spare memory does not help another group: KV cannot go there, and the dispatcher
    moves queued requests first. A shortage of 0 makes a drop due (demand is "about to exceed"), so
    it requires one byte.
    """
    return sum(int(shortage) + 1 for shortage in shortages_bytes if shortage >= 0)
