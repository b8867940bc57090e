"""How many instances a load needs: the paper's policy (§5.3), in our reading.

If the average load of an instance exceeds an upper bound, as many are added as bring it back to the
bound. If it is below a lower bound for a timeout, the surplus is stopped. The load is a share of an
instance's capacity, which is profiled. The paper gives no formula, and no number but "sub-second";
`artifact` has the formulas and bounds of its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Profile
from systems.blitzscale.monitor import Load

ROUNDING = 1e-9  # shares such as 0.7 have no exact float


@dataclass(slots=True, frozen=True)
class Bounds:
    """Bounds on an instance's load, as shares of its capacity. Raises UsageError unless 0 < lower <
    upper <= 1."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 < self.lower < self.upper <= 1:
            raise UsageError(
                f"bounds lower={self.lower}, upper={self.upper} must be 0 < lower < upper <= 1"
            )


@dataclass(slots=True, frozen=True)
class Range:
    """Numbers of instances. Raises UsageError unless 0 <= least <= most and 1 <= most."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not (0 <= self.least <= self.most and self.most >= 1):
            raise UsageError(
                f"instances least={self.least}, most={self.most} must be 0 <= least <= most, and "
                "most at least 1"
            )

    def clamp(self, count: int) -> int:
        """The nearest number in the range."""
        return max(self.least, min(self.most, count))


@dataclass(kw_only=True, slots=True, frozen=True)
class Capacity:
    """The capacity of one instance, profiled before the run."""

    prefill_tokens_per_s: float
    kv_tokens: int


def capacity_of(
    profile: Profile, model: ModelSpec, *, batch_tokens: int, kv_tokens: int
) -> Capacity:
    """batch_tokens: of a prefill at full load. kv_tokens: KV that fits on an instance."""
    seconds = profile.prefill_s(model, batch_tokens)
    return Capacity(prefill_tokens_per_s=batch_tokens / seconds, kv_tokens=kv_tokens)


def prefill_demand_per_s(load: Load, drain_s: float) -> float:
    """The larger of two rates in tokens/s: arriving tokens (§5.3), and what clears the queue in
    `drain_s`.

    The paper's code looks only at the queue, with 1 s. A prompt that has just come is in both, and
    must not count twice.
    """
    return max(load.prompt_tokens_per_s, load.queued_tokens / drain_s)


def wanted(demand: float, capacity: float, bounds: Bounds, running: int, *, below: bool) -> int:
    """How many instances `demand` needs, with `running` now.

    demand: in the unit of `capacity`, one instance's. below: the load has been below the lower
    bound for the timeout. At a constant demand a second call changes nothing.
    """
    enough = ceil(demand / (bounds.upper * capacity) - ROUNDING)
    if demand > bounds.upper * capacity * running * (1 + ROUNDING):
        return enough
    return min(enough, running) if below else running


class Below:
    """Measures how long a load has been below its lower bound."""

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s >= 0:
            raise UsageError(f"timeout_s={timeout_s} must be at least 0")
        self._timeout_s = timeout_s
        self._since_s: float | None = None

    def after(
        self, now_s: float, demand: float, capacity: float, bounds: Bounds, running: int
    ) -> bool:
        """Whether the load has been below the bound for the timeout. Call it at every look."""
        if demand >= bounds.lower * capacity * running:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._timeout_s
