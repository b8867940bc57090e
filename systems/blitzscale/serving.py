"""Serving with prefills and decodes on different instances (DistServe), while instances come, go,
change their role and die: the loops of both, and the KV that goes from one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Loop
from harness.device.elastic_cluster import ElasticCluster
from harness.errors import InstanceLost
from harness.request import Batch, Request
from systems.blitzscale.handover import Handover
from systems.blitzscale.prompts import Prompts
from systems.blitzscale.role import Role
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet, Slot

HELD = (State.SERVING, State.SHUTTING, State.NULL)


class Serving:
    def __init__(self, fleet: Fleet, cluster: ElasticCluster, prompts: Prompts, loop: Loop) -> None:
        self.fleet, self.cluster, self.prompts = fleet, cluster, prompts
        self._loop = loop
        self.handover = Handover(fleet, cluster, loop, self.again)

    def submit(self, request: Request) -> None:
        self.prompts.put([request])
        self.fleet.wake(Role.PREFILL)

    def again(self, requests: Sequence[Request], slot: Slot) -> None:
        """What `slot` had of `requests` is lost: they are computed again."""
        left = [request for request in requests if not request.finished]
        for request in left:
            slot.instance.evict(request)
        self.prompts.put(request for request in left if not request.failed)
        self.fleet.wake(Role.PREFILL)

    def begin(self, slot: Slot) -> None:
        """`slot` has all layers and serves from now on."""
        slot.turn(State.SERVING, self._loop.now)
        self._loop.spawn(self._serve(slot), name=slot.name)
        self.handover.dispatch()

    async def _serve(self, slot: Slot) -> None:
        try:
            while slot.state in HELD and not slot.gone:
                slot.wake.clear()
                if slot.running:
                    await self._decode(slot)
                elif slot.role is Role.PREFILL and slot.state is State.SERVING and not slot.paired:
                    await self._prefill(slot)
                else:
                    await self._loop.wait(slot.wake)
        except InstanceLost:
            pass  # of this instance: `again` sees to what it had
        if slot.gone or slot.instance.lost is not None:
            lost, slot.running = slot.running, []
            self.again(lost, slot)

    async def _decode(self, slot: Slot) -> None:
        """Continuous batching: until one ends or another one's KV has come."""
        await slot.instance.execute(Batch(decodes=list(slot.running)), stop=slot.wake)
        slot.running = [request for request in slot.running if not request.finished]
        self.handover.dispatch()

    async def _prefill(self, slot: Slot) -> None:
        batch = self.prompts.take(slot.instance.kv)
        if not batch:
            await self._loop.wait(slot.wake)
            return
        slot.batch = self._loop.now, sum(request.known_tokens for request in batch)
        await self._compute(batch, slot)
        slot.batch = None
        slot.rouse()

    async def _compute(self, batch: Sequence[Request], slot: Slot) -> None:
        """Prefills `batch`, and has its KV go to decodes. Raises InstanceLost once the batch is in
        the queue again."""
        chunks = [(request, request.known_tokens - request.computed_tokens) for request in batch]
        try:
            await slot.instance.execute(Batch(chunks=chunks))
        except InstanceLost:
            self.again(batch, slot)
            raise
        self.prefilled(batch, slot)

    def prefilled(self, batch: Sequence[Request], slot: Slot) -> None:
        """`slot` has run the last layers of `batch`."""
        for request in batch:
            if not request.finished:
                self.handover.offer(request, slot)
