"""The system's configuration, and what of it makes no sense."""

from __future__ import annotations

from dataclasses import dataclass

from systems.baselines.vllm import Limits
from systems.kunserve.artifact_monitor import ThresholdConfig
from systems.kunserve.monitor import MonitorConfig

VALID = {
    "variant": ("paper", "artifact"),
    "exchange": ("live", "blocking"),
    "restore": ("live", "drain", "never"),
    "plan": ("throughput", "memory"),
}


@dataclass(kw_only=True, slots=True)
class ChunkConfig:
    bytes: int | None  # of one device, of a message; null: what fits between two activations
    link_bytes_per_s: float
    link_latency_s: float
    batch: int  # requests of the micro-batch whose interval is taken
    context_tokens: int  # of each of them

    def __post_init__(self) -> None:
        if not self.link_bytes_per_s > 0:
            raise ValueError(
                f"system.chunks.link_bytes_per_s={self.link_bytes_per_s} must be above 0: without "
                "a link (hardware.nic_bytes_per_s) members exchange no KV"
            )
        for name in ("batch", "context_tokens"):
            if not getattr(self, name) > 0:
                raise ValueError(f"system.chunks.{name}={getattr(self, name)} must be above 0")


@dataclass(kw_only=True, slots=True)
class ArtifactConfig:
    drop_usage: float
    restore_usage: float
    falling_samples: int
    group_size: int
    victims: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        self.thresholds()
        for name, least in (("group_size", 2), ("victims", 1), ("chunk_tokens", 1)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"system.artifact.{name}={getattr(self, name)} must be at least {least}"
                )

    def thresholds(self) -> ThresholdConfig:
        return ThresholdConfig(
            drop_usage=self.drop_usage,
            restore_usage=self.restore_usage,
            falling_samples=self.falling_samples,
        )


@dataclass(kw_only=True, slots=True)
class KunServeConfig:
    variant: str
    replay_per_s: float  # of +workload=burstgpt, unless told otherwise; read there alone
    poll_s: float
    exchange: str
    restore: str
    limits: Limits
    steps_beside: int
    monitor: MonitorConfig
    plan: str
    chunks: ChunkConfig
    artifact: ArtifactConfig

    def __post_init__(self) -> None:
        for name, valid in VALID.items():
            value = getattr(self, name)
            if value not in valid:
                raise ValueError(f"system.{name}={value} is unknown; valid: {', '.join(valid)}")
        for name in ("poll_s", "replay_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"system.{name}={getattr(self, name)} must be above 0")
        if self.steps_beside < 1:
            raise ValueError(f"system.steps_beside={self.steps_beside} must be at least 1")
        if self.variant == "artifact" and self.exchange == "blocking":
            raise ValueError(
                "system.exchange=blocking is an ablation of variant=paper: with variant=artifact "
                "victims wait anyway"
            )
        if self.variant == "artifact" and self.plan != "throughput":
            raise ValueError(
                f"system.plan={self.plan} is for variant=paper: with variant=artifact groups are "
                "of system.artifact.group_size"
            )
