"""engine=sim: a virtual cluster of the hardware profile's devices, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

from harness.clock import Loop, VirtualLoop
from harness.cluster import Cluster
from harness.configuration.checks import require
from harness.cost.hardware import Hardware
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.cost.profile import HardwareProfile
from harness.cost.streamed import StreamedCost, streamed_layers
from harness.device.caching_pool import CachingPool
from harness.device.location import hbm
from harness.device.topology import Topology
from harness.device.victim import Victim
from harness.elastic.instance import ElasticInstance
from harness.engine_api import Experiment, kv_blocks_by_model
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Placement, spec_of
from harness.pooled.build import make_pool
from harness.pooled.instance import PooledInstance
from harness.pooled.plan import plan_memory
from harness.records.simulator_error import not_measured_elastic, simulator_error
from harness.sim.config import SimConfig, SimPoolConfig
from harness.sim.device import SimDevice
from harness.sim.elastic import SimElastic
from harness.sim.instance import SimInstance
from harness.sim.network import Network
from harness.sim.victims import SimVictim


class SimEngine:
    name = "sim"
    has_devices = True
    devices_known = True

    Config = SimConfig

    def __init__(self, config: SimConfig) -> None:
        self._config = config
        self._resolved: dict[str, Any] = {}

    def make_loop(self) -> Loop:
        return VirtualLoop()

    @contextmanager
    def start(self, experiment: Experiment) -> Iterator[Cluster]:
        told = "hardware.nodes names nodes of Ray, and engine=sim uses none: leave it out"
        require(experiment.hardware.nodes is None, told)
        named = list(enumerate(experiment.placements))
        if any(placement.elastic for placement in experiment.placements):
            yield self._elastic(experiment)
            return
        victims = list[Victim]()
        instances = [self._instance(f"sim-{i}", p, experiment) for i, p in named if p.model]
        pooled = [(f"sim-{i}", p) for i, p in named if p.model is None]
        self._resolved = self._settled(experiment, instances)
        pool = self._pool(pooled, experiment, victims) if pooled else []
        notice_s = self._config.loss_notice_s
        victims += [SimVictim(one, experiment.loop, notice_s) for one in instances]
        profile = HardwareProfile(experiment.hardware, costs=self._config.costs)
        yield experiment.cluster(instances=instances, pool=pool, profile=profile, victims=victims)

    def _instance(self, name: str, placement: Placement, experiment: Experiment) -> SimInstance:
        """An instance that serves its model for good."""
        model, hardware = spec_of(placement, experiment.models), experiment.hardware
        blocks = self._kv_blocks(model, hardware, placement.memory_share)
        blocks += placement.gained_bytes // (self._config.block_tokens * model.kv_bytes_per_token)
        rivals = self._config.memory_contention * neighbours(placement, experiment.placements)
        shares = placement.compute_share, placement.prefill_compute_share
        parts = [Part(compute_share=share, rivals=rivals) for share in shares]
        costs = [
            streamed(self._config.cost(model, hardware, part), placement, model, hardware)
            for part in parts
        ]
        kv = CachingPool(blocks, self._config.block_tokens)
        loop, recorder = experiment.loop, experiment.recorder
        return SimInstance(name, model, kv, costs[0], loop, recorder, prefill_cost=costs[1])

    def _pool(
        self, placed: list[tuple[str, Placement]], experiment: Experiment, victims: list[Victim]
    ) -> list[PooledInstance]:
        hardware, loop = experiment.hardware, experiment.loop
        config = within_host(self._config.pool, hardware)
        specs, block_tokens = list(experiment.models.values()), self._config.block_tokens
        plan = plan_memory(specs, hardware.memory_bytes, config, block_tokens)
        network = Network(loop, Topology(hardware))
        cost = cache(lambda spec: self._config.cost(spec, hardware))
        devices = []
        for name, placement in placed:
            gpus = [hbm(*divmod(device, hardware.devices_per_node)) for device in placement.devices]
            devices.append(SimDevice(name, gpus, config, block_tokens, experiment, cost, network))
        victims += [SimVictim(each, loop, self._config.loss_notice_s) for each in devices]
        self._resolved["pool"] = plan.facts(config, specs)
        return make_pool(devices, plan, config, experiment)

    def _elastic(self, experiment: Experiment) -> Cluster:
        built = SimElastic(experiment, self._config)
        settled = self._settled(experiment, built.cluster.instances)
        self._resolved = settled | {"elastic": True, "simulator_error": not_measured_elastic()}
        profile = HardwareProfile(experiment.hardware, costs=self._config.costs)
        return experiment.cluster(elastic=built.cluster, profile=profile, victims=built.victims)

    def _settled(
        self, experiment: Experiment, instances: Sequence[SimInstance | ElasticInstance]
    ) -> dict[str, Any]:
        hardware, sources = experiment.hardware, self._sources(experiment)
        return {
            "num_instances": len(experiment.placements),
            "block_tokens": self._config.block_tokens,
            "num_kv_blocks": kv_blocks_by_model(
                (one.model.name, one.kv.num_blocks) for one in instances
            ),
            "profile": self._config.profile,
            "step_times": sources,
            "simulator_error": simulator_error(
                hardware.device, hardware.name, set(sources.values()), self._config.profile
            ),
        }

    def _sources(self, experiment: Experiment) -> dict[str, str]:
        """Tells where each model's step times come from: measured, device law or datasheet; of a
        profile with costs of its own, what its device's silicon was learned from. UsageError for
        experts whose times were not measured."""
        specs = {spec.name: spec for spec in experiment.models.values()}
        found = {
            name: self._config.cost(spec, experiment.hardware).source
            for name, spec in sorted(specs.items())
        }
        for name, source in found.items():
            experts = specs[name].num_experts
            told = f"model={name} has {experts} experts; engine=sim knows such a model's times only"
            where = f"{told} where they were measured, on {experiment.hardware.name} they are not"
            require(experts is None or source == "measured", where)
        return found

    def _kv_blocks(self, model: ModelSpec, hardware: Hardware, memory_share: float) -> int:
        """Blocks that fit beside the weights, split over the model's devices."""
        if self._config.num_kv_blocks is not None:
            return self._config.num_kv_blocks
        memory_bytes = hardware.memory_bytes * memory_share
        usable = memory_bytes * self._config.memory_utilization
        free = (usable - self._config.activation_reserve_bytes) * model.tp - model.weight_bytes
        blocks = int(free // (model.held_kv_bytes_per_token * self._config.block_tokens))
        if blocks < 1:
            raise UsageError(
                f"model={model.name} (weights {model.weight_bytes / 2**30:.1f} GiB, tp {model.tp}) "
                f"leaves no memory for KV on hardware={hardware.name} "
                f"({memory_bytes / 2**30:.0f} GiB a device); use more devices (model.tp) "
                "or another profile"
            )
        return blocks

    def resolved(self) -> Mapping[str, Any]:
        return self._resolved


def streamed(
    cost: CostModel, placement: Placement, model: ModelSpec, hardware: Hardware
) -> CostModel:
    """`cost` with the layers that come from the host in each iteration."""
    if not placement.gained_bytes:
        return cost
    layers = streamed_layers(placement.gained_bytes, model.layer_bytes, model.num_layers)
    each_s = layers * model.layer_bytes / model.tp / hardware.pcie_bytes_per_s
    return StreamedCost(cost, each_s + layers * hardware.pcie_latency_s)


def neighbours(placement: Placement, placements: Sequence[Placement]) -> int:
    """How many other placements have a device of `placement`."""
    devices = set(placement.devices)
    return sum(not devices.isdisjoint(other.devices) for other in placements) - 1


def within_host(config: SimPoolConfig, hardware: Hardware) -> SimPoolConfig:
    """Fits `config` into a node's DRAM: the KV cache gets a half of it at most, and the model cache
    what that leaves."""
    kv_bytes = min(config.host_kv_bytes, hardware.host_memory_bytes // 2)
    cache_bytes = min(config.model_cache_bytes, hardware.host_memory_bytes - kv_bytes)
    return replace(config, host_kv_bytes=kv_bytes, model_cache_bytes=cache_bytes)
