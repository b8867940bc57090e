"""Where a new instance's parameters come from: the data planes that Fig. 17 and 20 compare.

BlitzScale reads over the network, from GPUs that serve the model or from its host copy.
ServerlessLLM reads its own host's memory if the cache has the model, else its SSD. AllCache's cache
has every model. A data plane serves all models of a run and only chooses sources; `loads` carries
the loads out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from harness.clock import Event, Loop
from harness.elastic.device_layout import weight_bytes
from harness.elastic.fabric import Memory
from harness.elastic.host_copies import HostCopies
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from systems.blitzscale.chains import Chain, Crossing, Hop, Medium, Plan, Source, Target
from systems.blitzscale.config import Config
from systems.blitzscale.instances import Fleet, Slot, State
from systems.blitzscale.planner import plan
from systems.blitzscale.pool import GpuCopy, HostCopy, ParameterPool


@dataclass(eq=False)
class Plane:
    """What the data planes share. Models are named as by `Slot.model`."""

    config: Config
    fleets: Mapping[str, Fleet]
    hosts: Mapping[int, HostCopies]
    loop: Loop

    def size_bytes(self, model: str) -> int:
        """Bytes of all parameters of an instance."""
        spec = self.fleets[model].model
        return spec.tp * weight_bytes(spec)

    def loaded(self, slot: Slot) -> None:
        """Notes that it has all layers."""

    def released(self, slot: Slot) -> None:
        """Notes that its weights are given up, or lost, of a slot that had all layers."""


@dataclass(eq=False)
class NetworkPlane(Plane):
    """BlitzScale's: global parameter pool and multicast planner (§5.1, §5.3)."""

    def __post_init__(self) -> None:
        sizes_bytes = {model: self.size_bytes(model) for model in self.fleets}
        host_bytes = min(host.region.capacity_bytes for host in self.hosts.values())
        self.pool = ParameterPool(sizes_bytes, self.hosts, host_bytes, self._gpu_copies)
        self._serving: list[Sequence[Slot]] = []  # at the last `upkeep`, by model
        self._stops: dict[str, Event] = {}  # {model: stops the host copy that is being made}
        for model, node in self.pool.host_copies.items():
            self.hosts[node].keep(model)

    def sources(self, model: str) -> list[Source]:
        """The copies that a scale-up can read now."""
        return self.pool.sources(model)

    def plan(self, slots: Sequence[Slot]) -> Plan:
        """How `slots` of one model get all layers: in chains (`multicast`), else each by itself.
        Raises UsageError if no source can bring them.

        GPUs whose NIC sends KV or parameters of any model are sources only if nothing else is left
        (`pruning`). Without `multicast` sources take turns.
        """
        fleet, targets = self.fleets[slots[0].model], [target_of(slot) for slot in slots]
        sources, busy = self.sources(slots[0].model), set[int]()
        if self.config.pruning:
            sending = [s for each in self.fleets.values() for s in each.slots if s.sends]
            busy = {device for slot in sending for device in slot.devices}
        if self.config.multicast:
            return plan(fleet.fabric, sources, targets, fleet.layers_bytes, busy=busy)
        chains, taken = list[Chain](), set[int]()  # taken: NICs that have had their turn
        for target in targets:
            found = plan(fleet.fabric, sources, [target], fleet.layers_bytes, busy=busy | taken)
            if not found.senders.isdisjoint(busy | taken):  # a new round
                taken = set()
                found = plan(fleet.fabric, sources, [target], fleet.layers_bytes, busy=busy)
            taken |= found.senders
            chains += found.chains
        return Plan(chains=tuple(chains))

    def may_release(self, slot: Slot) -> bool:
        """Whether its weights may be given up now."""
        return not slot.readers and self.pool.may_reclaim(slot.model, slot.name)

    def host_lost(self, node: int) -> None:
        """Stops copies from or to a host that has failed; the next `upkeep` makes them again."""
        before = dict(self.pool.coming)
        self.pool.failed(node)
        for model, copy in before.items():
            if node in (copy.node, copy.sources[0].node) or model not in self.pool.coming:
                self._stops[model].set()

    def upkeep(self) -> None:
        """Drops and begins host copies that are due: none, unless other instances serve than at the
        last time, or the pool has changed."""
        serving = [fleet.of(None, State.SERVING) for fleet in self.fleets.values()]
        if serving == self._serving and not self.pool.changed:
            return
        self._serving, self.pool.changed = serving, False
        for model in self.pool.surplus():
            if model in self.pool.host_copies:
                self.hosts[self.pool.host_copies[model]].drop(model)
                self.pool.dropped(model)
        for copy in self.pool.wanted():
            stop = self._stops[copy.model] = Event(self.loop)
            self.loop.spawn(self._copy(copy, stop), name=f"host copy of {copy.model}")

    async def _copy(self, copy: HostCopy, stop: Event) -> None:
        """Makes a host copy, from a GPU or the host's own SSD."""
        host = self.hosts[copy.node]
        source: ElasticInstance | Memory = host.disk(copy.model)
        if copy.sources[0].medium is Medium.GPU:
            device = copy.sources[0].devices[0]
            source = self.fleets[copy.model].at_device(device).instance
        try:
            done = await host.fetch(copy.model, source, stop=stop)
        except InstanceLost:
            done = False
        if self.pool.coming.get(copy.model) is not copy:
            if done:  # it was given up at the last moment
                host.drop(copy.model)
        elif done:
            self.pool.copied(copy.model)
        else:
            self.pool.dropped(copy.model)  # `wanted` asks again

    def _gpu_copies(self, model: str) -> Iterator[GpuCopy]:
        for slot in self.fleets[model].slots:
            if slot.loaded:
                stays = slot.state is State.SERVING
                yield GpuCopy(slot.name, slot.node, slot.devices, stays)


class HostCache:
    """Which hosts hold one model for the baseline ServerlessLLM (§6): a cache with a time to live.

    A loaded model stays in its host's memory while an instance there uses it, and for `ttl_s`
    after. A scale-up on a host without the model reads the host's SSDs. The paper has 5 minutes
    (§3), its code 30 s. What a full memory evicts is `CachedPlane`'s.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._users = Counter[int]()  # instances, by host
        self._last_use_s: dict[int, float] = {}

    def loaded(self, host: int) -> None:
        """Tells that an instance on `host` has loaded the model."""
        self._users[host] += 1

    def reclaimed(self, host: int, now_s: float) -> None:
        """Tells that an instance of the model on `host` is gone."""
        self._users[host] -= 1
        self._last_use_s[host] = now_s

    def failed(self, host: int) -> None:
        """Tells that a host is lost."""
        for held in (self._users, self._last_use_s):
            held.pop(host, None)

    def has(self, host: int, now_s: float) -> bool:
        """Whether the host's memory has the model, if nothing evicted it."""
        return self._users[host] > 0 or now_s - self.last_use_s(host) < self._ttl_s

    def last_use_s(self, host: int) -> float:
        """When the last instance on `host` was reclaimed; -inf: none was."""
        return self._last_use_s.get(host, -inf)

    def copies(self, now_s: float) -> int:
        """How many hosts hold the model (Fig. 19)."""
        return sum(self.has(host, now_s) for host in self._users)


@dataclass(eq=False)
class CachedPlane(Plane):
    """ServerlessLLM's, with a host cache for each model; with `parameters=all_cache` AllCache's,
    where all hosts always have all models.

    In a host whose memory is full ("scarce", §3) the models that were used the longest ago give way
    to the one that was loaded. Models with instances on the host stay; if that leaves no room, the
    loaded one is not kept. The order is ours: the paper names the TTL alone.
    """

    def __post_init__(self) -> None:
        everything = self.config.parameters == "all_cache"
        ttl_s = inf if everything else self.config.cache_ttl_s
        self._caches = {model: HostCache(ttl_s) for model in self.fleets}
        for model, cache in self._caches.items() if everything else ():
            for node, host in self.hosts.items():
                host.keep(model)
                cache.loaded(node)  # for good

    def sources(self, model: str) -> list[Source]:
        hosts = [n for n, host in self.hosts.items() if self._has(n, model) and not host.lost]
        return [Source(medium=Medium.HOST, node=node) for node in hosts]

    def plan(self, slots: Sequence[Slot]) -> Plan:
        """A chain of one node for each slot: from its own host's memory or SSD."""
        chains = []
        for slot in slots:
            fabric = self.fleets[slot.model].fabric
            medium, link, rate = Medium.SSD, Crossing.SSD, fabric.ssd_bytes_per_s
            if self._has(slot.node, slot.model):
                medium, link, rate = Medium.HOST, Crossing.PCIE, fabric.pcie_bytes_per_s
            rate *= len(slot.devices)
            hop = Hop(targets=(target_of(slot),), link=link, lanes=(), bytes_per_s=rate)
            chains.append(Chain(sources=(Source(medium=medium, node=slot.node),), hops=(hop,)))
        return Plan(chains=tuple(chains))

    def may_release(self, slot: Slot) -> bool:
        return True

    def loaded(self, slot: Slot) -> None:
        self._caches[slot.model].loaded(slot.node)
        if slot.model not in self.hosts[slot.node] and self._make_room(slot.node, slot.model):
            self.hosts[slot.node].keep(slot.model)  # the load passed through its memory

    def released(self, slot: Slot) -> None:
        if not self.hosts[slot.node].lost:  # when an instance is lost, its host may be alive
            self._caches[slot.model].reclaimed(slot.node, self.loop.now)

    def host_lost(self, node: int) -> None:
        for cache in self._caches.values():
            cache.failed(node)

    def upkeep(self) -> None:
        for model in self._caches:
            for node, host in self.hosts.items():
                if model in host and not self._has(node, model):
                    host.drop(model)

    def _make_room(self, node: int, model: str) -> bool:
        """Evicts what must go for `model`. False, and nothing goes, where that is not enough."""
        region, wanted = self.hosts[node].region, self.size_bytes(model)
        idle = [
            other for other, fleet in self.fleets.items()
            if other in self.hosts[node]
            and not any(slot.held for slot in fleet.slots if slot.node == node)
        ]  # fmt: skip
        if region.free_bytes + sum(map(self.size_bytes, idle)) < wanted:
            return False
        idle.sort(key=lambda other: self._caches[other].last_use_s(node), reverse=True)
        while region.free_bytes < wanted:
            self.hosts[node].drop(idle.pop())
        return True

    def _has(self, node: int, model: str) -> bool:
        return model in self.hosts[node] and self._caches[model].has(node, self.loop.now)


DataPlane = NetworkPlane | CachedPlane


def target_of(slot: Slot) -> Target:
    """The slot as the planner sees it."""
    return Target(name=slot.name, devices=slot.devices, live=slot.role.loads_live)
