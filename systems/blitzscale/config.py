"""The keys of `conf/system/blitzscale.yaml` and of the baselines' files, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import UsageError
from systems.blitzscale.artifact import InFlight
from systems.blitzscale.limits import SCHEDULERS
from systems.blitzscale.policy import Bounds, Range
from systems.blitzscale.role import Role

VARIANTS = ("paper", "artifact")
COUNTS = (
    "instances", "min_prefills", "max_prefills", "min_decodes", "max_decodes", "batch_tokens",
    "live_batches",
)  # fmt: skip
PARAMETERS = ("network", "host_cache", "all_cache")
SPARES = ("near", "spread")


@dataclass(kw_only=True, slots=True)
class Share:
    """Bounds on an instance's load, as shares of its capacity."""

    lower: float
    upper: float

    def bounds(self) -> Bounds:
        return Bounds(self.lower, self.upper)


@dataclass(kw_only=True, slots=True)
class Falling:
    """The fields of `artifact.InFlight`. Raises UsageError for values out of order."""

    most: int
    least: int
    step_s: float

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.most and self.step_s > 0):
            raise UsageError(
                f"in_flight most={self.most}, least={self.least}, step_s={self.step_s} must be "
                "1 <= least <= most and step_s > 0"
            )


@dataclass(kw_only=True, slots=True)
class VariantConfig:
    """What differs between variant=paper and variant=artifact."""

    timeout_s: float  # how long a load is below the lower bound before a scale-down
    null_s: float  # how long a drained instance keeps its weights
    prefill: Share
    decode: Share
    migration: Share
    ttl_s: float  # of the host cache
    in_flight: Falling | None  # batches under way at once in a live pair; null: no bound


@dataclass(kw_only=True, slots=True)
class Config:
    """Raises UsageError for unknown values, and for values that do not fit together."""

    variant: str  # paper | artifact
    # network: from GPUs or the host copy; host_cache: a cache with a TTL, else the SSD; all_cache:
    # every host has every model
    parameters: str
    pruning: bool  # network: a NIC that sends KV loads nothing, if another source exists (line 1)
    # near: free GPUs beside a copy first; spread: where most are free, wherever copies are
    spares: str
    multicast: bool  # network: chains by the planner; else each instance loads by itself
    zigzag: bool  # live scaling of prefills; else stop-the-world
    colocation: bool  # instances do both, prefill and decode
    mutation: bool  # a prefill becomes a decode if one is needed
    prescaling: bool  # decodes grow together with prefills
    instances: int | None  # at most; null: as many as fit
    # Colocated instances count as prefills; min_decodes and max_decodes are then null
    min_prefills: int | None  # there from the start; null: half of the instances, colocated all
    max_prefills: int | None  # null: as many as fit
    min_decodes: int | None  # null: what min_prefills leaves
    max_decodes: int | None
    batch_tokens: int  # of a prefill batch at most; a longer prompt is a batch of its own
    interval_s: float  # between two looks of the monitor
    window_s: float  # arrivals are averaged over it
    drain_s: float  # a queue of prompts is to be cleared in this time
    significant_growth: float  # of prefills: from this factor on, decodes are scaled beforehand
    live_slo_s: float  # a pair serves live if a prompt would wait longer for a stop-the-world load
    scheduler: str  # of live pairs: overlap | best_effort | ilp | ilp_free
    ilp_solving_s: float  # charged for solving the integer program
    live_batches: int | None  # under way at once in a live pair at most; null: the variant's
    ttl_s: float | None  # of the host cache; null: the variant's
    variants: dict[str, VariantConfig]

    def __post_init__(self) -> None:
        known = {
            "variant": VARIANTS,
            "parameters": PARAMETERS,
            "scheduler": SCHEDULERS,
            "spares": SPARES,
        }
        for name, valid in known.items():
            if getattr(self, name) not in valid:
                raise UsageError(
                    f"system.{name}={getattr(self, name)} is unknown; choose {' or '.join(valid)}"
                )
        self._check_numbers()
        if self.colocation:
            self._check_colocation()
        if not self.significant_growth > 1:
            raise UsageError(f"system.significant_growth={self.significant_growth} must be above 1")
        if self.zigzag and self.parameters != "network":
            raise UsageError(
                f"system.zigzag=true needs system.parameters=network, not {self.parameters}: the "
                "baselines stop the world"
            )

    def _check_colocation(self) -> None:
        for name in ("min_decodes", "max_decodes"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"system.{name}={getattr(self, name)} has no effect with "
                    "system.colocation=true: set it to null, as +system=blitzscale_colocated does"
                )
        if self.variant != "paper":
            raise UsageError(
                f"system.variant={self.variant} needs prefills and decodes on different instances: "
                "with system.colocation=true choose system.variant=paper"
            )

    def _check_numbers(self) -> None:
        for name in ("interval_s", "window_s", "drain_s", "live_slo_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"system.{name}={getattr(self, name)} must be above 0")
        for name in COUNTS:
            value = getattr(self, name)
            least = 0 if name in ("min_prefills", "min_decodes") else 1
            if value is not None and value < least:
                raise UsageError(f"system.{name}={value} must be at least {least}")
        self._check_none()
        chosen = self.chosen
        for share in (chosen.prefill, chosen.decode, chosen.migration):
            share.bounds()
        times_s = {
            "ttl_s": self.cache_ttl_s, "timeout_s": chosen.timeout_s, "null_s": chosen.null_s,
            "ilp_solving_s": self.ilp_solving_s,
        }  # fmt: skip
        for name, time_s in times_s.items():
            if not time_s >= 0:
                raise UsageError(f"{name}={time_s} must be at least 0")

    def _check_none(self) -> None:
        """A model may have no instance of either role, but not of one role alone."""
        none = [name for name in ("min_prefills", "min_decodes") if getattr(self, name) == 0]
        if none and self.variant != "paper":
            raise UsageError(f"system.{none[0]}=0 needs system.variant=paper, not {self.variant}")
        if len(none) == 1 and not self.colocation:
            other = "min_decodes" if none == ["min_prefills"] else "min_prefills"
            raise UsageError(
                f"system.{none[0]}=0 needs system.{other}=0, not {getattr(self, other)}: a model "
                "has instances of both roles, or none"
            )

    @property
    def chosen(self) -> VariantConfig:
        """The values of the chosen variant."""
        return self.variants[self.variant]

    @property
    def cache_ttl_s(self) -> float:
        return self.chosen.ttl_s if self.ttl_s is None else self.ttl_s

    def most_live_batches(self) -> Callable[[float], int] | None:
        """Seconds since a live pair began -> batches under way at once; None: no bound."""
        if self.live_batches is not None:
            bound = self.live_batches
            return lambda live_s: bound
        falling = self.chosen.in_flight
        if falling is None:
            return None
        return InFlight(most=falling.most, least=falling.least, step_s=falling.step_s).after

    def ranges(self, slots: int, models: int = 1) -> dict[Role, Range]:
        """{role: how many instances a model may have}.

        slots: instances that fit in the cluster. models: how many models share them; each is sure
        of its least number of instances. Raises UsageError if these do not fit.
        """
        share = slots // models
        if self.colocation:
            least = max(1, share) if self.min_prefills is None else self.min_prefills
            most = slots if self.max_prefills is None else self.max_prefills
            most = min(most, slots - (models - 1) * least)
            if not least <= most:
                of = "" if models == 1 else f" for {models} models"
                raise UsageError(
                    f"system.min_prefills={least} must be at most max_prefills="
                    f"{self.max_prefills} and the {slots} instances that fit{of}"
                )
            return {Role.COLOCATED: Range(least, most)}
        least_p = max(1, share // 2) if self.min_prefills is None else self.min_prefills
        least_d = max(1, share - least_p) if self.min_decodes is None else self.min_decodes
        if models * (least_p + least_d) > slots or slots < 2:
            of = "" if models == 1 else f" for each of {models} models"
            raise UsageError(
                f"{least_p} prefill and {least_d} decode instances{of} do not fit in {slots}: "
                "raise hardware.num_devices or lower system.min_prefills and min_decodes"
            )
        left = slots - (models - 1) * (least_p + least_d)
        most_p = left - least_d if self.max_prefills is None else self.max_prefills
        most_d = left - least_p if self.max_decodes is None else self.max_decodes
        for role, least, most in (("prefills", least_p, most_p), ("decodes", least_d, most_d)):
            if most < least:
                raise UsageError(
                    f"system.max_{role}={most} must be at least system.min_{role}={least}"
                )
        return {Role.PREFILL: Range(least_p, most_p), Role.DECODE: Range(least_d, most_d)}
