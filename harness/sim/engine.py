"""engine=sim: a virtual cluster of the hardware profile's devices, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.block_pool import BlockPool
from harness.clock import Loop, VirtualLoop
from harness.cluster import Cluster, ModelSpec
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.fidelity.published import published_error
from harness.hardware import Hardware
from harness.placement import resident_models
from harness.sim.cost import CostModel
from harness.sim.instance import SimInstance


class SimEngine:
    world = "sim"

    @dataclass(kw_only=True, slots=True)
    class Config:
        block_tokens: int
        num_kv_blocks: int | None  # null: what the memory budget leaves
        memory_utilization: float  # share of a device's memory for weights, activations and KV
        activation_reserve_bytes: int  # per device
        launch_overhead: float  # share of the kernel launches that a decode step pays

    def __init__(self, config: Config) -> None:
        for name in ("block_tokens", "num_kv_blocks"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise UsageError(f"engine.{name}={value} must be at least 1")
        if not 0 < config.memory_utilization <= 1:
            raise UsageError(
                f"engine.memory_utilization must be in (0, 1], got {config.memory_utilization}"
            )
        if not 0 <= config.launch_overhead <= 1:
            raise UsageError(
                f"engine.launch_overhead must be in [0, 1], got {config.launch_overhead}"
            )
        self._config = config
        self._resolved: dict[str, Any] = {}

    def make_loop(self) -> Loop:
        return VirtualLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        hardware = experiment.hardware
        instances = []
        blocks: dict[str, int] = {}
        sources: dict[str, str] = {}
        for i, model in enumerate(resident_models(experiment.placements)):
            blocks[model.name] = self._kv_blocks(model, hardware)
            cost = CostModel(model, hardware, launch=self._config.launch_overhead)
            sources[model.name] = cost.source
            instances.append(
                SimInstance(
                    name=f"sim-{i}",
                    model=model,
                    kv=BlockPool(blocks[model.name], self._config.block_tokens),
                    cost=cost,
                    loop=experiment.loop,
                    recorder=experiment.recorder,
                )
            )
        self._resolved = {
            "num_instances": len(instances),
            "block_tokens": self._config.block_tokens,
            "num_kv_blocks": blocks,
            "step_times": sources,  # measured, device law or datasheet
            "simulator_error": published_error(),
        }
        yield experiment.cluster(instances=instances)

    def _kv_blocks(self, model: ModelSpec, hardware: Hardware) -> int:
        """Blocks that fit beside the weights, split over the model's devices."""
        if self._config.num_kv_blocks is not None:
            return self._config.num_kv_blocks
        usable = hardware.memory_bytes * self._config.memory_utilization
        free = (usable - self._config.activation_reserve_bytes) * model.tp - model.weight_bytes
        blocks = int(free // (model.kv_bytes_per_token * self._config.block_tokens))
        if blocks < 1:
            raise UsageError(
                f"model={model.name} (weights {model.weight_bytes / 2**30:.1f} GiB, tp {model.tp}) "
                f"leaves no memory for KV on hardware={hardware.name} "
                f"({hardware.memory_bytes / 2**30:.0f} GiB a device); use more devices (model.tp) "
                "or another profile"
            )
        return blocks

    def resolved(self) -> Mapping[str, Any]:
        return self._resolved
