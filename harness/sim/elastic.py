"""Brings up elastic instances in virtual time: the cluster, and deaths on request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.device.location import hbm
from harness.device.topology import Topology
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout, memory_for_blocks
from harness.elastic.fabric import Memory
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.elastic.pipeline import Stage
from harness.elastic.shared import Shared
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Placement, spec_of
from harness.sim.beside_copies import beside_copies
from harness.sim.config import SimConfig
from harness.sim.fabric import SimFabric
from harness.sim.instance import SimInstance
from harness.sim.layerwise import SimLayerwise
from harness.sim.network import Network
from harness.sim.pipeline import SimPipeline
from harness.sim.victims import SimElasticVictim


class SimElastic:
    def __init__(self, experiment: Experiment, config: SimConfig) -> None:
        self._experiment, self._config = experiment, config
        hardware, self._loop = experiment.hardware, experiment.loop
        self._recorder = experiment.recorder
        achieved = hardware.memory_bandwidth_bytes_per_s * hardware.calibration.memory_efficiency
        self._achieved_bytes_per_s = achieved
        network = Network(self._loop, Topology(hardware))
        self.fabric = SimFabric(self._loop, network, achieved, config.loss_notice_s)
        shared = Shared(self._loop, self._recorder, self.fabric, KvDirectory(self._loop))
        self._runners: list[SimInstance] = []
        self._costs: dict[tuple[str, int, float], CostModel] = {}
        instances = [
            self._instance(f"sim-{i}", placement, shared)
            for i, placement in enumerate(experiment.placements)
        ]
        self.cluster = ElasticCluster(instances, self, shared, experiment.models, hardware)
        self.fabric.interrupt = {one.name: one.interrupt_all for one in instances}
        self.victims = [SimElasticVictim(one, self._loop, self.fabric) for one in self._runners]

    def _instance(self, name: str, placement: Placement, shared: Shared) -> ElasticInstance:
        elastic, config, hardware = placement.elastic, self._config, self._experiment.hardware
        if elastic is None or not (placement.model or placement.own):
            raise UsageError("a cluster with an elastic instance has no others")
        model = spec_of(placement, self._experiment.models)
        layout = DeviceLayout(
            model, self._memory_bytes(model, placement), config.block_tokens, elastic.page_layers
        )
        places = [hbm(*divmod(device, hardware.devices_per_node)) for device in placement.devices]
        memory = Memory(name, places[0] if len(places) == 1 else tuple(places))
        instance = ElasticInstance(memory, layout, shared, elastic.resident)
        cost = partial(config.cost, model, hardware)
        runner = SimInstance(name, model, instance.kv, cost(), self._loop, self._recorder)
        runner.died = partial(self.fabric.require, name)
        instance.runner = runner
        self._runners.append(runner)
        if config.copies_take_bandwidth:
            self.fabric.beside[name] = beside_copies(
                self._achieved_bytes_per_s,
                lambda rivals: cost(Part(rivals=rivals)),
                runner.use,
                instance.interrupt_all,
            )
        return instance

    def _memory_bytes(self, model: ModelSpec, placement: Placement) -> int:
        config = self._config
        if config.num_kv_blocks is not None:
            return memory_for_blocks(model, config.block_tokens, config.num_kv_blocks)
        device_bytes = self._experiment.hardware.memory_bytes * placement.memory_share
        return int(device_bytes * config.memory_utilization) - config.activation_reserve_bytes

    def pipeline(self, stages: Sequence[Stage]) -> SimPipeline:
        return SimPipeline(
            stages, partial(self._cost, stages[0][0].model), self.fabric, self._loop,
            self._recorder, self._config.first_stage_constants,
        )  # fmt: skip

    def layerwise(self) -> SimLayerwise:
        return SimLayerwise(self._cost, self.fabric, self._loop, self._recorder)

    def _cost(self, model: ModelSpec, num_layers: int, constants: float) -> CostModel:
        """The cost model of a part of the layers, with so much of an iteration's constants."""
        key = model.name, num_layers, constants
        if key not in self._costs:
            part = Part(num_layers, constants=constants)
            self._costs[key] = self._config.cost(model, self._experiment.hardware, part)
        return self._costs[key]
