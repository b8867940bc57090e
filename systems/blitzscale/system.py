"""`+system=blitzscale` and its baselines: a service for each model.

All services share the GPUs, the network and the parameter pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, tensor_parallel, within_nodes
from harness.request import Request
from systems.blitzscale import config as settings
from systems.blitzscale.fabric import fabric_of
from systems.blitzscale.parameters import CachedParameters, NetworkParameters, Parameters
from systems.blitzscale.pool_copies import PoolCopies
from systems.blitzscale.service import Served, Service, served
from systems.blitzscale.slots import Fleet, Slot


class BlitzScale:
    """`place` raises UsageError if the hardware does not fit the configuration. Raises ValueError
    if the engine has no elastic instances."""

    Config = settings.Config

    @staticmethod
    def place(
        config: settings.Config, models: Mapping[str, ModelSpec], hardware: Hardware,
        demand: Demand,
    ) -> list[Placement]:  # fmt: skip
        """Slots on all GPUs for each model; one model at a time uses a GPU. The first slots have
        weights from the start: prefills, then decodes, or colocated instances."""
        width, found = tensor_parallel(models), served(models)
        if hardware.num_nodes > 1 and not hardware.nic_bytes_per_s > 0:
            raise UsageError(
                f"hardware={hardware.name} has no network between its {hardware.num_nodes} nodes "
                "(nic_bytes_per_s=0), and KV and parameters need one: choose other hardware"
            )
        room = within_nodes(width, hardware)
        if config.instances is not None:
            if config.instances > len(room):
                raise UsageError(
                    f"system.instances={config.instances} does not fit: hardware={hardware.name} "
                    f"has room for {len(room)} instances of {width} devices"
                )
            room = room[: config.instances]
        ranges = config.ranges(len(room), len(found))
        least = sum(of_role.least for of_role in ranges.values())
        return [
            Placement(
                devices=devices, model=model.names[0],
                elastic=Elastic(
                    page_layers=1 if config.zigzag else None,  # a batch may be split anywhere
                    resident=None if k * least <= i < (k + 1) * least else range(0),
                ),
            )
            for k, model in enumerate(found)
            for i, devices in enumerate(room)
        ]  # fmt: skip

    def __init__(self, config: settings.Config, *, loop: Loop, cluster: Cluster) -> None:
        elastic = cluster.elastic
        if elastic is None:
            raise ValueError(
                "system blitzscale needs instances whose weights and KV move: choose engine=torch "
                "or engine=sim"
            )
        self._config, self._loop, self._elastic = config, loop, elastic
        fabric, found = fabric_of(elastic.hardware), served(cluster.models)
        fleets = {model.key: fleet_of(model, cluster, loop) for model in found}
        for fleet in fleets.values():
            fleet.others = [other for other in fleets.values() if other is not fleet]
        self._copies: PoolCopies | None = None
        if config.parameters == "network":
            specs = {model.key: model.spec for model in found}
            self._copies = PoolCopies(specs, fleets, elastic, loop)
        self._cached: list[CachedParameters] = []

        def parameters(model: str, layers_bytes: list[float]) -> Parameters:
            if self._copies is not None:
                return NetworkParameters(
                    model, fleets[model], self._copies, fabric, layers_bytes,
                    multicast=config.multicast, pruning=config.pruning,
                )  # fmt: skip
            self._cached.append(
                CachedParameters(
                    model, elastic, fabric, loop, config.cache_ttl_s,
                    everything=config.parameters == "all_cache",
                )
            )  # fmt: skip
            return self._cached[-1]

        num_slots = len(next(iter(fleets.values())).slots)
        self.services = [
            Service(
                model, fleets[model.key], config, config.ranges(num_slots, len(found)), fabric,
                partial(parameters, model.key), elastic, cluster, loop,
            )
            for model in found
        ]  # fmt: skip
        self._of_model = {name: each for each in self.services for name in each.model.names}
        self._of_instance = {
            slot.name: each for each in self.services for slot in each.fleet.slots
        }  # fmt: skip
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
                service.scaler.step()
            still = any(each.scaler.lacking for each in self.services)
            for service in self.services:
                if service not in lacking:
                    service.scaler.step(may_grow=not still)
            await self._loop.sleep(self._config.interval_s)

    def _lost(self, instance: ElasticInstance) -> None:
        self._of_instance[instance.name].lost(instance)

    def _host_lost(self, node: int) -> None:
        """Plans loads from the lost host's memory again, and makes its copies elsewhere."""
        if self._copies is not None:
            self._copies.host_lost(node)
        for cached in self._cached:
            cached.host_lost(node)
        for service in self.services:
            service.fleet.host_lost(node)
            service.scaler.loads.host_lost(node)


def fleet_of(model: Served, cluster: Cluster, loop: Loop) -> Fleet:
    """The slots of `model` that `place` asked for."""
    assert cluster.elastic is not None
    per_node = cluster.elastic.hardware.devices_per_node
    placed = zip(cluster.elastic.instances, cluster.placements, strict=True)
    return Fleet(
        [
            Slot(each, model.key, tuple(at.devices), at.devices.start // per_node, loop)
            for each, at in placed
            if at.model in model.names
        ]
    )
