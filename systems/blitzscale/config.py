"""The keys of `conf/system/blitzscale.yaml` and of the baselines' files, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from harness.configuration.checks import at_least, positive, require, words
from systems.blitzscale.instances import Role

CHOICES = {
    "variant": ("paper", "artifact"),
    "parameters": ("network", "host_cache", "all_cache"),
    "scheduler": ("overlap", "best_effort", "ilp", "ilp_free"),
    "spares": ("near", "spread"),
}
AT_LEAST_1 = ("instances", "max_prefills", "max_decodes", "batch_tokens", "live_batches")
ROUNDING = 1e-9  # shares such as 0.7 have no exact float


@dataclass(slots=True)
class Bounds:
    """Bounds on an instance's load, as shares of its capacity. Raises UsageError unless 0 < lower <
    upper <= 1."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        require(
            0 < self.lower < self.upper <= 1,
            f"bounds lower={self.lower}, upper={self.upper} must be 0 < lower < upper <= 1",
        )


@dataclass(slots=True, frozen=True)
class Range:
    """Numbers of instances. Raises UsageError unless 0 <= least <= most and 1 <= most."""

    least: int
    most: int

    def __post_init__(self) -> None:
        require(
            0 <= self.least <= self.most and self.most >= 1,
            f"instances least={self.least}, most={self.most} must be 0 <= least <= most, and "
            "most at least 1",
        )

    def clamp(self, count: int) -> int:
        """The nearest number in the range."""
        return max(self.least, min(self.most, count))


Ranges = dict[Role, Range]


@dataclass(kw_only=True, slots=True)
class InFlight:
    """How many batches the code's live pair has under way at once: fewer as layers arrive. Raises
    UsageError for values out of order."""

    most: int
    least: int
    step_s: float  # one fewer after each such time

    def __post_init__(self) -> None:
        require(
            1 <= self.least <= self.most and self.step_s > 0,
            f"in_flight most={self.most}, least={self.least}, step_s={self.step_s} must be "
            "1 <= least <= most and step_s > 0",
        )

    def after(self, live_s: float) -> int:
        """live_s: seconds since the pair began."""
        return max(self.least, self.most - int(live_s / self.step_s + ROUNDING))


@dataclass(kw_only=True, slots=True)
class VariantConfig:
    """What differs between variant=paper and variant=artifact."""

    timeout_s: float  # how long a load is below the lower bound before a scale-down
    null_s: float  # how long a drained instance keeps its weights
    prefill: Bounds
    decode: Bounds
    migration: Bounds
    ttl_s: float  # of the host cache
    in_flight: InFlight | None  # batches under way at once in a live pair; null: no bound

    def __post_init__(self) -> None:
        at_least(self, 0, "system.variants", "timeout_s", "null_s", "ttl_s")


@dataclass(kw_only=True, slots=True)
class Config:
    """Raises UsageError for unknown values, and for values that do not fit together."""

    variant: str  # paper | artifact
    # network: from GPUs or the host copy; host_cache: a cache with a TTL, else the SSD; all_cache:
    # every host has every model
    parameters: str
    pruning: bool  # network: a NIC that sends KV loads nothing, if another source exists (line 1)
    # near: free GPUs beside a copy first; spread: on the host with the most, wherever copies are
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
        words(self, "system", CHOICES)
        positive(self, "system", "interval_s", "window_s", "drain_s", "live_slo_s")
        growth = self.significant_growth
        require(growth > 1, f"system.significant_growth={growth} must be above 1")
        at_least(self, 0, "system", "min_prefills", "min_decodes", "ttl_s", "ilp_solving_s")
        at_least(self, 1, "system", *AT_LEAST_1)
        self._check_no_instances()
        if self.colocation:
            self._check_colocation()
        require(
            self.parameters == "network" or not self.zigzag,
            f"system.zigzag=true needs system.parameters=network, not {self.parameters}: the "
            "baselines stop the world",
        )

    def _check_colocation(self) -> None:
        for name in ("min_decodes", "max_decodes"):
            require(
                getattr(self, name) is None,
                f"system.{name}={getattr(self, name)} has no effect with system.colocation=true: "
                "set it to null, as +system=blitzscale_colocated does",
            )
        require(
            self.variant == "paper",
            f"system.variant={self.variant} needs prefills and decodes on different instances: "
            "with system.colocation=true choose system.variant=paper",
        )

    def _check_no_instances(self) -> None:
        """A model may have no instance of either role, but not of one role alone."""
        least = {"min_prefills": self.min_prefills, "min_decodes": self.min_decodes}
        for name in [name for name, count in least.items() if count == 0]:
            require(
                self.variant == "paper",
                f"system.{name}=0 needs system.variant=paper, not {self.variant}",
            )
            for other, count in least.items():
                require(
                    self.colocation or count == 0,
                    f"system.{name}=0 needs system.{other}=0, not {count}: a model has instances "
                    "of both roles, or none",
                )

    @property
    def chosen(self) -> VariantConfig:
        """The values of the chosen variant."""
        return self.variants[self.variant]

    @property
    def cache_ttl_s(self) -> float:
        return self.chosen.ttl_s if self.ttl_s is None else self.ttl_s

    @property
    def in_flight(self) -> InFlight | None:
        """Batches under way at once in a live pair; None: no bound."""
        if self.live_batches is not None:
            return InFlight(most=self.live_batches, least=self.live_batches, step_s=1.0)
        return self.chosen.in_flight

    def ranges(self, slots: int, models: int = 1) -> Ranges:
        """{role: how many instances a model may have}.

        slots: instances that fit in the cluster. models: how many models share them; each is sure
        of its least number of instances. Raises UsageError if these do not fit.
        """
        share, others = slots // models, models - 1
        if self.colocation:
            least = _given(self.min_prefills, max(1, share))
            most = min(_given(self.max_prefills, slots), slots - others * least)
            of = "" if models == 1 else f" for {models} models"
            require(
                least <= most,
                f"system.min_prefills={least} must be at most max_prefills={self.max_prefills} "
                f"and the {slots} instances that fit{of}",
            )
            return {Role.COLOCATED: Range(least, most)}
        least_p = _given(self.min_prefills, max(1, share // 2))
        least_d = _given(self.min_decodes, max(1, share - least_p))
        of = "" if models == 1 else f" for each of {models} models"
        require(
            models * (least_p + least_d) <= slots and slots >= 2,
            f"{least_p} prefill and {least_d} decode instances{of} do not fit in {slots}: "
            "raise hardware.num_devices or lower system.min_prefills and min_decodes",
        )
        left = slots - others * (least_p + least_d)
        most_p = _given(self.max_prefills, left - least_d)
        most_d = _given(self.max_decodes, left - least_p)
        for role, least, most in (("prefills", least_p, most_p), ("decodes", least_d, most_d)):
            require(
                least <= most,
                f"system.max_{role}={most} must be at least system.min_{role}={least}",
            )
        return {Role.PREFILL: Range(least_p, most_p), Role.DECODE: Range(least_d, most_d)}


def _given(count: int | None, default: int) -> int:
    return default if count is None else count
