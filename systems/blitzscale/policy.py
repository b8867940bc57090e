"""How many instances a load needs: the paper's policy (§5.3), in our reading.

Above an upper bound on the average load of an instance as many are added as bring it back to the
bound; below a lower bound for a timeout the surplus is stopped. An instance's load is a share of
what it can do, which is profiled. The paper gives no formula and no number but "sub-second"; the
bounds that its code has are in `artifact`, as its other formulas are.
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
    """Of an instance's load, as shares of what it can do."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 < self.lower < self.upper <= 1:
            raise UsageError(
                f"bounds lower={self.lower}, upper={self.upper} must be 0 < lower < upper <= 1"
            )


@dataclass(slots=True, frozen=True)
class Range:
    """How many instances there may be."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not (0 <= self.least <= self.most and self.most >= 1):
            raise UsageError(
                f"instances least={self.least}, most={self.most} must be 0 <= least <= most, and "
                "most at least 1"
            )

    def clamp(self, count: int) -> int:
        return max(self.least, min(self.most, count))


@dataclass(kw_only=True, slots=True, frozen=True)
class Capacity:
    """What one instance can do, profiled before the run."""

    prefill_tokens_per_s: float
    kv_tokens: int


def capacity_of(
    profile: Profile, model: ModelSpec, *, batch_tokens: int, kv_tokens: int
) -> Capacity:
    """`batch_tokens`: of a prefill at full load. `kv_tokens`: that an instance has room for."""
    seconds = profile.prefill_s(model, batch_tokens)
    return Capacity(prefill_tokens_per_s=batch_tokens / seconds, kv_tokens=kv_tokens)


def prefill_demand_per_s(load: Load, drain_s: float) -> float:
    """Tokens/s that arrive (§5.3), or what it takes to clear the queue in `drain_s` (all that the
    paper's code looks at, with 1 s), whichever is more: what has just come and waits is in both,
    and is no load twice."""
    return max(load.prompt_tokens_per_s, load.queued_tokens / drain_s)


def wanted(demand: float, capacity: float, bounds: Bounds, running: int, *, below: bool) -> int:
    """Instances for `demand`, in the unit of one instance's `capacity`, with `running` now.

    `below`: the load has been below the lower bound for as long as the timeout. At a constant
    demand a second call changes nothing.
    """
    enough = ceil(demand / (bounds.upper * capacity) - ROUNDING)
    if demand > bounds.upper * capacity * running * (1 + ROUNDING):
        return enough
    return min(enough, running) if below else running


class Below:
    """For how long a load has been below the lower bound."""

    def __init__(self, timeout_s: float) -> None:
        if not timeout_s >= 0:
            raise UsageError(f"timeout_s={timeout_s} must be at least 0")
        self._timeout_s = timeout_s
        self._since_s: float | None = None

    def after(
        self, now_s: float, demand: float, capacity: float, bounds: Bounds, running: int
    ) -> bool:
        """Whether it has been for the timeout. To be called whenever the load is looked at."""
        if demand >= bounds.lower * capacity * running:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._timeout_s
