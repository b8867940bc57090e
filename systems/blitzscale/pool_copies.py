"""Carries out what the parameter pool asks for (§5.3): makes and drops host copies.

All models of a run share one pool.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.device_layout import weight_bytes
from harness.elastic.fabric import Memory
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from systems.blitzscale.chains import Medium
from systems.blitzscale.pool import HostCopy, ParameterPool
from systems.blitzscale.slots import Fleet


class PoolCopies:
    """models, fleets: by the pool's names of models."""

    def __init__(
        self, models: Mapping[str, ModelSpec], fleets: Mapping[str, Fleet],
        cluster: ElasticCluster, loop: Loop,
    ) -> None:  # fmt: skip
        self._cluster, self._loop = cluster, loop
        self.fleets = fleets
        host_bytes = min(host.region.capacity_bytes for host in cluster.hosts.values())
        sizes = {model: spec.tp * weight_bytes(spec) for model, spec in models.items()}
        self.pool = ParameterPool(sizes, cluster.hosts, host_bytes)
        self._stops: dict[str, Event] = {}  # {model: stops the copy that is being made}
        for model, node in self.pool.host_copies().items():
            cluster.hosts[node].keep(model)

    def upkeep(self) -> None:
        """Drops and begins copies that are due."""
        for model in self.pool.surplus():
            if model not in self.pool.coming():
                self._cluster.hosts[self.pool.host_copies()[model]].drop(model)
                self.pool.dropped(model)
        for copy in self.pool.wanted():
            stop = self._stops[copy.model] = Event(self._loop)
            self._loop.spawn(self._copy(copy, stop), name=f"host copy of {copy.model}")

    def host_lost(self, node: int) -> None:
        """Stops copies from or to a host that has failed; the next `upkeep` makes them again."""
        before = self.pool.coming()
        self.pool.failed(node)
        for model, copy in before.items():
            source = copy.sources[0]
            if node in (copy.node, source.node) or model not in self.pool.coming():
                self._stops[model].set()

    async def _copy(self, copy: HostCopy, stop: Event) -> None:
        host = self._cluster.hosts[copy.node]
        try:
            done = await host.fetch(copy.model, self._source(copy), stop=stop)
        except InstanceLost:
            done = False
        if self.pool.coming().get(copy.model) is not copy:
            if done:  # it was given up at the last moment
                host.drop(copy.model)
        elif done:
            self.pool.copied(copy.model)
        else:
            self.pool.dropped(copy.model)  # `wanted` asks again

    def _source(self, copy: HostCopy) -> ElasticInstance | Memory:
        source = copy.sources[0]
        if source.medium is Medium.GPU:
            return self.fleets[copy.model].at_device(source.devices[0]).instance
        if source.node == copy.node or source.medium is Medium.SSD:
            return self._cluster.hosts[copy.node].disk(copy.model)
        return self._cluster.hosts[source.node].source(copy.model)
