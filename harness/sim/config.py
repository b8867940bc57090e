"""`engine` of engine=sim: its keys, each checked."""

from __future__ import annotations

from dataclasses import dataclass

from harness.configuration.checks import at_least, positive, require
from harness.cost.hardware import Hardware
from harness.cost.law import WHOLE, Part
from harness.cost.model import CostModel
from harness.cost.served import EngineCosts, cost_model
from harness.model_spec import ModelSpec
from harness.pooled.plan import PoolConfig


@dataclass(kw_only=True, slots=True)
class SimPoolConfig(PoolConfig):
    """`engine.pool` of the simulator: how long what it does not model takes."""

    restart_s: float  # ending an inference engine and starting another, its weights apart
    collect_s: float  # a tensor library's garbage collection and giving back of memory
    pageable_bytes_per_s: float  # of a load that goes tensor by tensor, each device
    chunk_bytes: int  # of each device's weights: a prefetch can be broken off after each

    def __post_init__(self) -> None:
        PoolConfig.__post_init__(self)
        positive(self, "", "pageable_bytes_per_s", "chunk_bytes")


@dataclass(kw_only=True, slots=True)
class SimConfig:
    block_tokens: int
    num_kv_blocks: int | None  # null: what the memory budget leaves
    memory_utilization: float  # share of a device's memory for weights, activations and KV
    activation_reserve_bytes: int  # per device
    profile: str  # the engine's generation, a file of conf/engine/profile
    costs: EngineCosts | None  # what it says; null: those of hardware.calibration
    launch_overhead: float  # share of the kernel launches that a decode step pays, of those
    first_stage_constants: float  # share of an iteration's own costs that it pays
    loss_notice_s: float  # from an instance's death to the harness knowing
    copies_take_bandwidth: bool  # whether copies leave batches less of it
    memory_contention: float  # of instances that share a device: 0 none, 1 the worst case
    pool: SimPoolConfig  # of systems whose models share instances

    def __post_init__(self) -> None:
        at_least(self, 1, "engine", "block_tokens", "num_kv_blocks")
        share = self.memory_utilization
        require(0 < share <= 1, f"engine.memory_utilization must be in (0, 1], got {share}")
        for name in ("launch_overhead", "first_stage_constants", "memory_contention"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"engine.{name} must be in [0, 1], got {value}")
        at_least(self, 0, "engine", "loss_notice_s")

    def cost(self, model: ModelSpec, hardware: Hardware, part: Part = WHOLE) -> CostModel:
        """What iterations of `model`, or of a part of it, take."""
        return cost_model(model, hardware, self.costs, part, launch=self.launch_overhead)
