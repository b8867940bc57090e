"""Carries out scale plans: concurrent loads, with each layer forwarded as it arrives.

If the source of a target dies, the target is planned again; the layers that it has stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Memory
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from systems.blitzscale.chains import Medium, Plan
from systems.blitzscale.parameters import Parameters
from systems.blitzscale.pulls import Pull, pulls
from systems.blitzscale.slots import Fleet, Slot


class Loads:
    """Loads the instances of one model.

    ready: called with each instance that has all layers. planned: called with each plan, also with
    plans after a death.
    """

    def __init__(
        self, fleet: Fleet, cluster: ElasticCluster, parameters: Parameters, loop: Loop,
        ready: Callable[[Slot], None], planned: Callable[[Plan], None],
    ) -> None:  # fmt: skip
        self._fleet, self._cluster, self._parameters = fleet, cluster, parameters
        self._loop, self._ready, self._planned = loop, ready, planned
        self._orphans: list[Slot] = []  # targets whose source has died
        self._from_host: dict[Event, int] = {}  # {event that stops a load: host that it reads}

    def start(self, slots: Sequence[Slot]) -> None:
        """Begins to load `slots`."""
        plan = self._parameters.plan(slots)
        found = pulls(plan, slots[0].instance.model.num_layers)
        for slot in slots:
            mine = [pull for pull in found if pull.target == slot.name]
            self._loop.spawn(self._bring(slot, mine), name=f"load {slot.name}")
        self._planned(plan)

    def host_lost(self, node: int) -> None:
        """Stops the loads from the memory of host `node`; they are planned again."""
        for stop, read in self._from_host.items():
            if read == node:
                stop.set()

    async def _bring(self, slot: Slot, mine: Sequence[Pull]) -> None:
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
        if slot.gone or slot.host_lost or slot.instance.lost is not None:
            return
        if all(task.result for task in tasks):
            self._parameters.deployed(slot)
            self._ready(slot)
        else:
            self._orphans.append(slot)
            if len(self._orphans) == 1:
                self._loop.spawn(self._again(), name="plan again")

    async def _again(self) -> None:
        """Makes one plan for all targets that lost a source at the same time."""
        await self._loop.sleep(0.0)
        orphans, self._orphans = self._orphans, []
        left = [slot for slot in orphans if not (slot.gone or slot.host_lost)]
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
            for layers in runs(pull.layers):
                if not await slot.instance.load(
                    layers, source, on_layer=lambda _: slot.rouse(), stop=stop
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
        model = slot.model
        if pull.medium is Medium.GPU:
            return self._fleet.at_device(pull.source).instance
        if pull.medium is Medium.HOST:
            return self._cluster.hosts[pull.source].source(model)
        return self._cluster.hosts[slot.node].disk(model)


def runs(layers: Sequence[int]) -> list[range]:
    """`layers` as consecutive ranges, in order."""
    found: list[range] = []
    for layer in layers:
        if found and found[-1].stop == layer:
            found[-1] = range(found[-1].start, layer + 1)
        else:
            found.append(range(layer, layer + 1))
    return found
