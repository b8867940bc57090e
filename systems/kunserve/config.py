"""The keys of `conf/system/kunserve.yaml`, and the checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.configuration.checks import at_least, positive, refuse, words
from harness.elastic.instance import ElasticInstance
from systems.kunserve.artifact import ArtifactConfig
from systems.kunserve.exchange import ChunkConfig
from systems.kunserve.monitor import MonitorConfig
from systems.kunserve.plan import EXHAUSTIVE_LIMIT
from systems.serving.iteration import Limits

VALID = {
    "variant": ("paper", "artifact"),
    "exchange": ("live", "blocking"),
    "restore": ("live", "drain", "never"),
    "plan": ("throughput", "memory", "exhaustive", "none"),
}


@dataclass(kw_only=True, slots=True)
class KunServeConfig:
    """Raises ValueError for unknown values, and for values that do not fit together."""

    variant: str  # paper or artifact
    poll_s: float
    exchange: str  # live or blocking
    restore: str  # live, drain or never
    limits: Limits  # of an instance, and of a micro-batch
    steps_beside: int  # decode steps at most of a batch beside which others run
    monitor: MonitorConfig
    plan: str  # throughput, memory, exhaustive or none
    max_group_size: int | None  # instances of a group; None: no limit
    groups: list[int] | None  # sizes of the groups that each drop makes; None: by `plan`
    standby: int  # instances that are kept without weights
    chunks: ChunkConfig
    artifact: ArtifactConfig

    def __post_init__(self) -> None:
        words(self, "system", VALID)
        positive(self, "system", "poll_s")
        at_least(self, 1, "system", "steps_beside")
        at_least(self, 0, "system", "standby")
        at_least(self, 2, "system", "max_group_size")
        artifact, chosen = self.variant == "artifact", self.groups is not None
        key, sizes = "groups", self.groups or []
        if artifact:
            key, sizes = "artifact.group_size", [self.artifact.group_size]
        most, largest = self.max_group_size, max(sizes, default=0)
        refuse({
            f"system.groups={self.groups} must have sizes of at least 1":
                any(size < 1 for size in self.groups or ()),
            f"system.groups={self.groups} is for variant=paper: with variant=artifact each group "
            "has system.artifact.group_size instances": artifact and chosen,
            f"system.{key} makes groups of {largest} instances, and system.max_group_size={most} "
            f"allows {most}: set system.max_group_size=null": most is not None and largest > most,
            f"system.plan={self.plan} has no effect with system.groups={self.groups}, which is the "
            "plan": chosen and self.plan != "throughput",
            "system.exchange=blocking is an ablation of variant=paper: with variant=artifact "
            "victims always wait for their KV": artifact and self.exchange == "blocking",
            f"system.plan={self.plan} is for variant=paper: with variant=artifact each group has "
            "system.artifact.group_size instances, or with system.plan=none nothing is dropped":
                artifact and self.plan not in ("throughput", "none"),
            f"system.standby={self.standby} is for variant=paper: the public code drops and never "
            "starts an instance": artifact and self.standby,
        })  # fmt: skip


def check_instances(config: KunServeConfig, instances: Sequence[ElasticInstance]) -> None:
    """Raises UsageError if these instances cannot drop parameters as configured."""
    serving, standby = len(instances) - config.standby, config.standby
    beside = f" beside {standby} on standby" if standby else ""
    models = sorted({instance.model.name for instance in instances})
    widths = sorted({instance.model.tp for instance in instances})
    size, layers = config.artifact.group_size, instances[0].model.num_layers
    divides = not len(instances) % size and size <= min(len(instances), layers)
    refuse({
        f"system kunserve needs at least two instances of a model and has {serving}{beside}: "
        "raise hardware.num_devices": serving < 2,
        f"system.groups={config.groups} has {sum(config.groups or [])} instances; there are "
        f"{serving}": config.groups is not None and sum(config.groups) != serving,
        f"system.plan=exhaustive is for up to {EXHAUSTIVE_LIMIT} instances; there are "
        f"{len(instances)}": config.plan == "exhaustive" and len(instances) > EXHAUSTIVE_LIMIT,
        f"system kunserve serves one model with one tp, not {', '.join(models)} with tp "
        f"{', '.join(map(str, widths))}: choose model_set=one":
            len(models) > 1 or len(widths) > 1,
        f"system.artifact.group_size={size} must divide the {len(instances)} instances and be at "
        f"most {layers}, the model's layers": config.variant == "artifact" and not divides,
    })  # fmt: skip
