"""Brings up elastic instances in virtual time: the cluster, and deaths on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.cost.hardware import Hardware
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.cost.served import EngineCosts, cost_model
from harness.device.location import hbm
from harness.device.topology import cluster_topology
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Memory, Place
from harness.elastic.host_copies import HostCopies
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.elastic.pipeline import Stage
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Placement, spec_of
from harness.sim.beside_copies import BesideCopies
from harness.sim.fabric import SimFabric
from harness.sim.instance import SimInstance
from harness.sim.layerwise import SimLayerwise
from harness.sim.network import Network
from harness.sim.pipeline import SimPipeline


class Limits(Protocol):
    """What `engine` says of memory, and of how long a death stays unnoticed."""

    block_tokens: int
    num_kv_blocks: int | None
    memory_utilization: float
    activation_reserve_bytes: int
    costs: EngineCosts | None
    launch_overhead: float
    first_stage_constants: float
    loss_notice_s: float
    copies_take_bandwidth: bool


class SimElastic:
    """`cost` as `SimEngine._cost`."""

    def __init__(
        self, experiment: Experiment, config: Limits,
        cost: Callable[[ModelSpec, Hardware, float, float], CostModel],
    ) -> None:  # fmt: skip
        self._experiment, self._config = experiment, config
        hardware, loop = experiment.hardware, experiment.loop
        network = Network(loop, cluster_topology(hardware))
        achieved = hardware.memory_bandwidth_bytes_per_s * hardware.calibration.memory_efficiency
        self._achieved_bytes_per_s = achieved
        self.fabric = SimFabric(loop, network, achieved, config.loss_notice_s)
        self.directory = KvDirectory(loop)
        self._whole_cost = cost
        self._costs: dict[tuple[str, int, float], CostModel] = {}
        instances = [
            self._instance(f"sim-{i}", placement)
            for i, placement in enumerate(experiment.placements)
        ]
        hosts = {
            node: HostCopies(
                node, hardware.host_memory_bytes, experiment.models, self.fabric, loop,
                experiment.recorder,
            )
            for node in range(hardware.num_nodes)
        }  # fmt: skip
        self.cluster = ElasticCluster(
            instances, hosts, self.fabric, self.directory, self._line, self._pieces, loop,
            experiment.recorder, hardware,
        )  # fmt: skip
        self.fabric.halt = {one.name: one.halt_all for one in instances}

    def _instance(self, name: str, placement: Placement) -> ElasticInstance:
        elastic, config, hardware = placement.elastic, self._config, self._experiment.hardware
        if placement.model is None or elastic is None:
            raise UsageError("a cluster with an elastic instance has no others")
        model = spec_of(placement, self._experiment.models)
        layout = DeviceLayout(
            model, self._memory_bytes(model, placement), config.block_tokens, elastic.page_layers
        )
        places = [hbm(*divmod(device, hardware.devices_per_node)) for device in placement.devices]
        place: Place = places[0] if len(places) == 1 else tuple(places)
        every = range(model.num_layers)
        instance = ElasticInstance(
            Memory(name, place), layout, self.directory, self.fabric, self._experiment.loop,
            self._experiment.recorder,
            resident=every if elastic.resident is None else elastic.resident,
        )  # fmt: skip
        runner = SimInstance(
            name, model, instance.kv, self._whole_cost(model, hardware, 1.0, 0.0),
            self._experiment.loop,
            self._experiment.recorder,
        )  # fmt: skip

        async def died() -> None:
            await self.fabric.require(name)

        runner.died = died
        instance.runner = runner
        if config.copies_take_bandwidth:
            beside = BesideCopies(
                self._achieved_bytes_per_s,
                lambda rivals: self._whole_cost(model, hardware, 1.0, rivals),
                runner.use, instance.halt_all,
            )  # fmt: skip
            self.fabric.beside[name] = beside.change
        return instance

    def _memory_bytes(self, model: ModelSpec, placement: Placement) -> int:
        config = self._config
        device = self._experiment.hardware.memory_bytes * placement.memory_share
        memory = int(device * config.memory_utilization) - config.activation_reserve_bytes
        if config.num_kv_blocks is not None:
            small = DeviceLayout(model, 2**62, config.block_tokens)
            weights = small.weight_bytes(range(model.num_layers))
            memory = (config.num_kv_blocks + 1) * small.page_bytes + weights + 64
        return memory

    def _line(self, stages: Sequence[Stage]) -> SimPipeline:
        def cost(num_layers: int, constants: float) -> CostModel:
            return self._cost(stages[0][0].model, num_layers, constants)

        return SimPipeline(
            stages, cost, self.fabric, self._experiment.loop, self._experiment.recorder,
            first_constants=self._config.first_stage_constants,
        )  # fmt: skip

    def _pieces(self) -> SimLayerwise:
        loop, recorder = self._experiment.loop, self._experiment.recorder
        return SimLayerwise(self._cost, self.fabric, loop, recorder)

    def _cost(self, model: ModelSpec, num_layers: int, constants: float) -> CostModel:
        """Of a part of the layers, with so much of an iteration's constants."""
        key = model.name, num_layers, constants
        if key not in self._costs:
            config, part = self._config, Part(num_layers, constants)
            hardware, launch = self._experiment.hardware, config.launch_overhead
            self._costs[key] = cost_model(model, hardware, config.costs, part, launch=launch)
        return self._costs[key]
