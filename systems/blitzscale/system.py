"""`+system=blitzscale` and its baselines: a service for each model.

All services share the GPUs, the network and the parameter pool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, tensor_parallel, within_nodes
from harness.request import Request
from systems.blitzscale.config import Config as Settings
from systems.blitzscale.instances import Fleet, Slot
from systems.blitzscale.parameters import CachedPlane, NetworkPlane
from systems.blitzscale.service import Service
from systems.serving.elastic import elastic_of


def served(models: Mapping[str, ModelSpec]) -> dict[str, list[str]]:
    """{model: the names that requests have for it}. Names with equal specs are one model; different
    specs are different models, even if they have the same name."""
    names: dict[ModelSpec, list[str]] = {}
    for name, spec in models.items():
        names.setdefault(spec, []).append(name)
    called = Counter(spec.name for spec in names)
    return {spec.name if called[spec.name] == 1 else of[0]: of for spec, of in names.items()}


class BlitzScale:
    """`place` raises UsageError if the hardware does not fit the configuration. Raises ValueError
    if the engine has no elastic instances."""

    Config = Settings

    @staticmethod
    def place(
        config: Settings, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        """Slots on all GPUs for each model; one model at a time uses a GPU. The first slots have
        weights from the start: prefills, then decodes, or colocated instances."""
        width, found = tensor_parallel(models), served(models)
        if hardware.num_nodes > 1 and not hardware.nic_bytes_per_s > 0:
            raise UsageError(
                f"hardware={hardware.name} has no network between its {hardware.num_nodes} nodes "
                "(nic_bytes_per_s=0), and KV and parameters need one: choose other hardware"
            )
        room = within_nodes(width, hardware)
        if config.instances is not None and config.instances > len(room):
            raise UsageError(
                f"system.instances={config.instances} does not fit: hardware={hardware.name} "
                f"has room for {len(room)} instances of {width} devices"
            )
        room = room[: config.instances]
        ranges = config.ranges(len(room), len(found))
        least = sum(of_role.least for of_role in ranges.values())
        page_layers = 1 if config.zigzag else None  # a batch may be split anywhere
        placements = []
        for k, names in enumerate(found.values()):
            for i, devices in enumerate(room):
                resident = None if k * least <= i < (k + 1) * least else range(0)
                elastic = Elastic(page_layers=page_layers, resident=resident)
                placements.append(Placement(devices=devices, model=names[0], elastic=elastic))
        return placements

    def __init__(self, config: Settings, *, loop: Loop, cluster: Cluster) -> None:
        elastic = elastic_of(cluster, "blitzscale needs instances whose weights and KV move")
        self._config, self._loop, self._elastic = config, loop, elastic
        found = served(cluster.models)
        fleets = {
            model: fleet_of(model, names, cluster, elastic, loop) for model, names in found.items()
        }
        for fleet in fleets.values():
            fleet.others = [other for other in fleets.values() if other is not fleet]
        plane = NetworkPlane if config.parameters == "network" else CachedPlane
        self.data_plane = plane(config, fleets, elastic.hosts, loop)
        self.services: list[Service] = []
        self._of_model: dict[str, Service] = {}  # by the name that a request has for it
        self._of_instance: dict[str, Service] = {}
        for model, names in found.items():
            service = Service(config, fleets[model], self.data_plane, cluster)
            self.services.append(service)
            self._of_model |= dict.fromkeys(names, service)
            self._of_instance |= {slot.name: service for slot in service.fleet.slots}
        elastic.on_lost, elastic.on_host_lost = self._lost, self._host_lost

    def submit(self, request: Request) -> None:
        self._of_model[request.model].submit(request)

    async def serve(self) -> None:
        for service in self.services:
            service.begin()
        self._loop.spawn(self._scale(), name="scaler")
        await self._loop.wait(Event(self._loop))

    async def _scale(self) -> None:
        """Scales all models at every look. Models that lack an instance come first; while there is
        such a model, the others do not grow."""
        while True:
            lacking = [each for each in self.services if each.scaler.lacking]
            for service in lacking:
                service.step()
            still = any(each.scaler.lacking for each in lacking)
            for service in self.services:
                if service not in lacking:
                    service.step(may_grow=not still)
            await self._loop.sleep(self._config.interval_s)

    def _lost(self, instance: ElasticInstance) -> None:
        self._of_instance[instance.name].lost(instance)

    def _host_lost(self, node: int) -> None:
        """Plans loads from the lost host's memory again, and makes its copies elsewhere."""
        slots = [slot for service in self.services for slot in service.fleet.slots]
        for slot in slots:
            slot.host_lost = slot.host_lost or slot.node == node
        self.data_plane.host_lost(node)
        for service in self.services:
            service.loads.host_lost(node)


def fleet_of(
    model: str, names: Sequence[str], cluster: Cluster, elastic: ElasticCluster, loop: Loop
) -> Fleet:
    """The slots of `model` that `place` asked for."""
    per_node = elastic.hardware.devices_per_node
    placed = zip(elastic.instances, cluster.placements, strict=True)
    slots = [
        Slot(each, model, tuple(at.devices), at.devices.start // per_node, loop)
        for each, at in placed
        if at.model in names
    ]
    return Fleet(slots, elastic, cluster.profile, loop)
