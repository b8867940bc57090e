"""When to drop parameters and when to restore them (§4.3, "Online monitor and drop trigger").

The preprint gives the drop: "when the future KVCache usage is about to exceed the available HBM in
one second", from two rates. It gives no rule for the restore but that demand has decreased; the
one here is ours. Pure: time and bytes come in, a decision comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Decision = Literal["drop", "restore"] | None


class Sample(NamedTuple):
    """One group at one time."""

    time_s: float
    demand_bytes: int  # KV in use and what queued requests need (`demand_bytes`)
    capacity_bytes: int  # for KV, used or free


@dataclass(kw_only=True, slots=True)
class MonitorConfig:
    horizon_s: float  # 1 (§4.3)
    window_s: float  # over which the rates are taken; unstated
    restore_share: float  # of the KV memory after a restore that demand may then fill; unstated
    calm_s: float  # for which a restore must have been due all the time; unstated

    def __post_init__(self) -> None:
        for name in ("horizon_s", "window_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"system.monitor.{name}={getattr(self, name)} must be above 0")
        if not 0 < self.restore_share < 1:
            raise ValueError(
                f"system.monitor.restore_share={self.restore_share} must be between 0 and 1, "
                "exclusive: at 1 a restore would leave no room for the demand that it found"
            )
        if not self.calm_s >= 0:
            raise ValueError(f"system.monitor.calm_s={self.calm_s} must be at least 0")


def demand_bytes(
    running_bytes: int, queued_bytes: Sequence[int], *, head_of_line_only: bool
) -> int:
    """KV that is wanted: of requests that run, and of those queued, in order of their service.

    head_of_line_only: of the queue its first alone, as Llumnix counts and Fig. 1 (b) (§2.2). What a
    plan must free (R of §4.1, "to hold the queued requests") is with all of them, and so is what a
    restore looks at: a long queue for seats would otherwise pass for calm.
    """
    return running_bytes + (sum(queued_bytes[:1]) if head_of_line_only else sum(queued_bytes))


class Monitor:
    """One group's history since its memory last changed by a drop or a restore."""

    def __init__(self, config: MonitorConfig) -> None:
        self._config = config
        self._samples: deque[Sample] = deque()
        self._calm_since_s: float | None = None

    def reset(self) -> None:
        """After a drop or a restore: the step that it makes in the memory is not a rate."""
        self._samples.clear()
        self._calm_since_s = None

    def observe(self, sample: Sample, restored_bytes: int | None = None) -> Decision:
        """Takes in one sample, later than those before. What to do now, if anything.

        restored_bytes: the group's KV memory if its parameters were restored; None: it has them.
        """
        self._samples.append(sample)
        while self._samples[0].time_s < sample.time_s - self._config.window_s:
            self._samples.popleft()
        if self.shortage_bytes() >= 0:
            self._calm_since_s = None
            return "drop"
        if restored_bytes is None or not self._calm(restored_bytes):
            self._calm_since_s = None
            return None
        if self._calm_since_s is None:
            self._calm_since_s = sample.time_s
        return "restore" if sample.time_s - self._calm_since_s >= self._config.calm_s else None

    def shortage_bytes(self) -> float:
        """By how much demand will exceed the memory for KV at the horizon; negative: by how much
        it will not. Both move on at their rates over the window."""
        demand, capacity = self._rates()
        last = self._samples[-1]
        ahead_s = self._config.horizon_s
        return (last.demand_bytes + demand * ahead_s) - (last.capacity_bytes + capacity * ahead_s)

    def _calm(self, restored_bytes: int) -> bool:
        """Whether demand is low, and at its growth will be at the horizon. Requests that decode
        always grow: waiting for no growth at all would be waiting for their ends."""
        growth, _ = self._rates()
        demand = self._samples[-1].demand_bytes + max(0.0, growth) * self._config.horizon_s
        return demand <= self._config.restore_share * restored_bytes

    def _rates(self) -> tuple[float, float]:
        """Bytes per second, of demand and of the memory for KV. A history shorter than the window
        counts as level before: two samples at once are no trend."""
        first, last = self._samples[0], self._samples[-1]
        span_s = self._config.window_s
        return (
            (last.demand_bytes - first.demand_bytes) / span_s,
            (last.capacity_bytes - first.capacity_bytes) / span_s,
        )


def required_bytes(shortages_bytes: Sequence[float]) -> int:
    """R of §4.1: what all groups together will lack. One group's spare memory does not help
    another: its KV cannot go there, and queued requests are the dispatcher's to move first.

    A shortage of 0 makes a drop due (demand is "about to exceed"), so it requires a byte.
    """
    return sum(int(shortage) + 1 for shortage in shortages_bytes if shortage >= 0)
