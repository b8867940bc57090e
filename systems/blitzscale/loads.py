"""Carries out scale plans: concurrent loads, with each layer forwarded as it arrives (§5.1).

A chain's node gets each layer from the node before it as the layer arrives there. If a node has
several instances with NICs of their own, each gets its part of the layers over the network, and the
other layers over NVLink: Fig. 14's sharded transfer with AllGather, by whole layers.

If the source of a target dies, the target is planned again; the layers that it has stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.clock import Event
from harness.elastic.fabric import Memory
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from systems.blitzscale.chains import Hop, Medium, Plan, Target
from systems.blitzscale.instances import Slot
from systems.blitzscale.pairing import Pairing
from systems.blitzscale.parameters import DataPlane
from systems.blitzscale.serving import Serving


@dataclass(slots=True, frozen=True)
class Pull:
    """One load: some layers, from one source to one target."""

    target: str
    layers: range
    medium: Medium
    source: int  # an instance's first device; the node of a host's memory or SSD


def pulls(plan: Plan, num_layers: int) -> list[Pull]:
    """Which instance gets which layers from which source, in all chains."""
    found: list[Pull] = []
    for chain in plan.chains:
        medium = chain.sources[0].medium
        heads = [s.devices[0] if s.devices else s.node for s in chain.sources]
        owners = {device: s.devices[0] for s in chain.sources for device in s.devices}
        for hop in chain.hops:
            found += _of_hop(hop, medium, heads, owners, range(num_layers))
            medium = Medium.GPU
            heads = [target.devices[0] for target in hop.targets]
            owners = {device: t.devices[0] for t in hop.targets for device in t.devices}
    return found


def _of_hop(
    hop: Hop, medium: Medium, heads: Sequence[int], owners: dict[int, int], every: range
) -> Iterator[Pull]:
    """heads: the first device of each instance at the hop's beginning. owners: {device: that of its
    instance}."""
    wired = [target for target in hop.targets if _sender(hop, target) is not None]
    for i, target in enumerate(hop.targets):
        sender = _sender(hop, target)
        from_ = heads[i % len(heads)] if sender is None else owners.get(sender, heads[0])
        if not wired:
            yield Pull(target.name, every, medium, from_)
        for j, other in enumerate(wired):
            part = every[j :: len(wired)]
            if other is target:
                yield Pull(target.name, part, medium, from_)
            elif part:
                yield Pull(target.name, part, Medium.GPU, other.devices[0])


def _sender(hop: Hop, target: Target) -> int | None:
    """The GPU whose NIC sends to the target; None: the hop crosses no network."""
    return next((lane.sender for lane in hop.lanes if lane.receiver in target.devices), None)


class Loads:
    """Loads the instances of one model. pairing: is told of each plan, also after a death."""

    def __init__(self, serving: Serving, data_plane: DataPlane, pairing: Pairing) -> None:
        self._serving, self._data_plane, self._pairing = serving, data_plane, pairing
        self._fleet, self._loop = serving.fleet, serving.fleet.loop
        self._orphans: list[Slot] = []  # targets whose source has died
        self._from_host: dict[Event, int] = {}  # {event that stops a load: host that it reads}

    def start(self, slots: Sequence[Slot]) -> None:
        """Begins to load `slots`."""
        plan = self._data_plane.plan(slots)
        found = pulls(plan, self._fleet.model.num_layers)
        for slot in slots:
            mine = [pull for pull in found if pull.target == slot.name]
            self._loop.spawn(self._load(slot, mine), name=f"load {slot.name}")
        self._pairing.planned(plan)

    def loaded(self, slot: Slot) -> None:
        """Has an instance that has all layers serve."""
        self._fleet.cluster.take(slot.instance, slot.role.value)
        self._data_plane.loaded(slot)
        self._serving.begin(slot)

    def host_lost(self, node: int) -> None:
        """Stops the loads from the memory of host `node`; they are planned again."""
        for stop, read in self._from_host.items():
            if read == node:
                stop.set()

    async def _load(self, slot: Slot, mine: Sequence[Pull]) -> None:
        stop = Event(self._loop)
        for pull in mine:
            if pull.medium is Medium.HOST:
                self._from_host[stop] = pull.source
        tasks = [
            self._loop.spawn(self._pull(slot, pull, stop), name=f"load {slot.name}")
            for pull in mine
        ]
        for task in tasks:
            await self._loop.wait(task.finished)
        self._from_host.pop(stop, None)
        if slot.lost or slot.host_lost:
            return
        if all(task.result for task in tasks):
            self.loaded(slot)
        else:
            self._orphans.append(slot)
            if len(self._orphans) == 1:
                self._loop.spawn(self._plan_again(), name="plan again")

    async def _plan_again(self) -> None:
        """Makes one plan for all targets that lost a source at the same time."""
        await self._loop.sleep(0.0)
        orphans, self._orphans = self._orphans, []
        left = [slot for slot in orphans if not (slot.lost or slot.host_lost)]
        if left:
            self.start(left)

    async def _pull(self, slot: Slot, pull: Pull, stop: Event) -> bool:
        """Loads one pull's layers. False if its source, or another source of the target, has
        died."""
        reads = self._fleet.at_device(pull.source) if pull.medium is Medium.GPU else None
        if reads is not None:
            reads.readers += 1
        try:
            source = self._source(slot, pull)
            whole = pull.layers.step == 1
            for layers in [pull.layers] if whole else [range(k, k + 1) for k in pull.layers]:
                if not await slot.instance.load(
                    layers, source, on_layer=lambda _: slot.notify(), stop=stop
                ):
                    return False
            return True
        except InstanceLost:
            stop.set()
            return False
        finally:
            if reads is not None:
                reads.readers -= 1

    def _source(self, slot: Slot, pull: Pull) -> ElasticInstance | Memory:
        if pull.medium is Medium.GPU:
            return self._fleet.at_device(pull.source).instance
        hosts = self._fleet.cluster.hosts
        if pull.medium is Medium.HOST:
            return hosts[pull.source].source(slot.model)
        return hosts[slot.node].disk(slot.model)
