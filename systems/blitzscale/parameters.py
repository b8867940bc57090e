"""Where a new instance's parameters come from: the data planes that Fig. 17 and 20 compare.

BlitzScale reads over the network, from GPUs that serve the model or from its host copy.
ServerlessLLM reads its own host's memory if the cache has the model, else its SSD. AllCache's cache
has every model. A data plane only chooses sources; `loads` carries the loads out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from systems.blitzscale.chains import Chain, Crossing, Hop, Medium, Plan, Source, Target
from systems.blitzscale.fabric import Fabric
from systems.blitzscale.host_cache import HostCache
from systems.blitzscale.planner import plan
from systems.blitzscale.pool_copies import PoolCopies
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet, Slot


class Parameters(Protocol):
    """A data plane. Most methods tell it what has happened to an instance."""

    def plan(self, slots: Sequence[Slot]) -> Plan:
        """How `slots` get all layers. Raises UsageError if no source can bring them."""
        ...

    def sources(self) -> list[Source]:
        """The copies that a scale-up can read now."""
        ...

    def deployed(self, slot: Slot) -> None:
        """It has all layers."""
        ...

    def leaving(self, slot: Slot) -> None:
        """It is being shut down."""
        ...

    def staying(self, slot: Slot) -> None:
        """It was being shut down and serves again."""
        ...

    def may_release(self, slot: Slot) -> bool:
        """Whether its weights may be given up now."""
        ...

    def released(self, slot: Slot) -> None:
        """Its weights are given up."""
        ...

    def lost(self, slot: Slot) -> None:
        """It has died."""
        ...

    def upkeep(self) -> None:
        """Makes and drops host copies that are due."""
        ...


def target_of(slot: Slot) -> Target:
    """The slot as the planner sees it."""
    return Target(name=slot.name, devices=slot.devices, live=slot.role.loads_live)


class NetworkParameters:
    """BlitzScale's, for one model: global parameter pool and multicast planner (§5.1, §5.3).

    multicast: chains; else each instance loads by itself. pruning: NICs that send KV are sources
    only if nothing else is left.
    """

    def __init__(
        self, model: str, fleet: Fleet, copies: PoolCopies, fabric: Fabric,
        layers_bytes: Sequence[float], *, multicast: bool, pruning: bool,
    ) -> None:  # fmt: skip
        self._model, self._fleet, self._copies, self._fabric = model, fleet, copies, fabric
        self._layers_bytes, self._multicast, self._pruning = layers_bytes, multicast, pruning
        self._pool = copies.pool

    def sources(self) -> list[Source]:
        return self._pool.sources(self._model)

    def plan(self, slots: Sequence[Slot]) -> Plan:
        sources, targets = self.sources(), [target_of(slot) for slot in slots]
        busy = {
            device
            for fleet in self._copies.fleets.values()  # all models share the NICs
            for slot in fleet.slots
            if self._pruning
            if slot.readers
            or (slot.role.sends_kv and slot.state in (State.SERVING, State.SHUTTING))
            for device in slot.devices
        }
        if self._multicast:
            return plan(self._fabric, sources, targets, self._layers_bytes, busy=busy)
        alone = [
            plan(self._fabric, sources, [target], self._layers_bytes, busy=busy)
            for target in targets
        ]
        return Plan(chains=tuple(chain for each in alone for chain in each.chains))

    def deployed(self, slot: Slot) -> None:
        self._pool.deployed(self._model, slot.copy())

    def leaving(self, slot: Slot) -> None:
        self._pool.leaving(slot.name)

    def staying(self, slot: Slot) -> None:
        self._pool.staying(slot.name)

    def may_release(self, slot: Slot) -> bool:
        return not slot.readers and self._pool.may_reclaim(self._model, slot.name)

    def released(self, slot: Slot) -> None:
        self._pool.reclaimed(self._model, slot.name)

    def lost(self, slot: Slot) -> None:
        self._pool.lost(self._model, slot.name)

    def upkeep(self) -> None:
        self._copies.upkeep()


class CachedParameters:
    """ServerlessLLM's, whose host caches keep a model for `ttl_s`; with `everything`, AllCache's,
    where all hosts always have the model."""

    def __init__(
        self, model: str, cluster: ElasticCluster, fabric: Fabric, loop: Loop, ttl_s: float, *,
        everything: bool,
    ) -> None:  # fmt: skip
        self._cluster, self._fabric, self._loop = cluster, fabric, loop
        self._model = model
        self._cache = HostCache(inf if everything else ttl_s)
        self._deployed = set[str]()
        if everything:
            for node, host in cluster.hosts.items():
                host.keep(model)
                self._cache.loaded(node, model)  # for good

    def sources(self) -> list[Source]:
        hosts = [n for n, host in self._cluster.hosts.items() if self._has(n) and not host.lost]
        return [Source(medium=Medium.HOST, node=node) for node in hosts]

    def plan(self, slots: Sequence[Slot]) -> Plan:
        """A chain of one node for each slot: from its own host's memory or SSD."""
        chains = []
        for slot in slots:
            hit = self._has(slot.node)
            devices = [self._fabric.devices[device] for device in slot.devices]
            rates = [d.pcie_bytes_per_s if hit else d.ssd_bytes_per_s for d in devices]
            hop = Hop(
                targets=(target_of(slot),), link=Crossing.PCIE if hit else Crossing.SSD, lanes=(),
                bytes_per_s=sum(rates),
            )  # fmt: skip
            medium = Medium.HOST if hit else Medium.SSD
            chains.append(Chain(sources=(Source(medium=medium, node=slot.node),), hops=(hop,)))
        return Plan(chains=tuple(chains))

    def deployed(self, slot: Slot) -> None:
        self._deployed.add(slot.name)
        self._cache.loaded(slot.node, self._model)
        if self._model not in self._cluster.hosts[slot.node]:
            self._cluster.hosts[slot.node].keep(self._model)  # the load passed through its memory

    def leaving(self, slot: Slot) -> None:
        pass

    def staying(self, slot: Slot) -> None:
        pass

    def may_release(self, slot: Slot) -> bool:
        return True

    def released(self, slot: Slot) -> None:
        self._deployed.remove(slot.name)
        if not self._cluster.hosts[slot.node].lost:
            self._cache.reclaimed(slot.node, self._model, self._loop.now)

    def lost(self, slot: Slot) -> None:
        if slot.name in self._deployed:
            self.released(slot)  # its host may be alive

    def host_lost(self, node: int) -> None:
        """Host `node` has failed."""
        self._cache.failed(node)

    def upkeep(self) -> None:
        for node, host in self._cluster.hosts.items():
            if self._model in host and not self._has(node):
                host.drop(self._model)

    def _has(self, node: int) -> bool:
        return self._cache.has(node, self._model, self._loop.now)
