"""Serves while instances come, go, change their role and die.

With prefills and decodes on different instances (DistServe), there are loops of both, and KV goes
from one to the other. Colocated instances (§5.4) have one loop, whose iterations have prompts and
decodes together.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.clock import Loop
from harness.elastic.cluster import ElasticCluster
from harness.errors import InstanceLost
from harness.request import Batch, Request
from systems.blitzscale.handover import Handover
from systems.blitzscale.prompts import Prompts, kv_tokens
from systems.blitzscale.role import Role
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Fleet, Slot

HELD = (State.SERVING, State.SHUTTING, State.NULL)


class Serving:
    """The loops of one model's instances."""

    def __init__(self, fleet: Fleet, cluster: ElasticCluster, prompts: Prompts, loop: Loop) -> None:
        self.fleet, self.cluster, self.prompts = fleet, cluster, prompts
        self._loop = loop
        self.handover = Handover(fleet, cluster, loop, self.again)

    def submit(self, request: Request) -> None:
        self.prompts.put([request])
        self.fleet.wake(Role.PREFILL)

    def again(self, requests: Sequence[Request], slot: Slot) -> None:
        """Has `requests` computed again: KV that `slot` had of them is lost."""
        left = [request for request in requests if not request.finished]
        for request in left:
            slot.instance.evict(request)
            self.handover.free(request)
        self.prompts.put(request for request in left if not request.failed)
        self.fleet.wake(Role.PREFILL)

    def begin(self, slot: Slot) -> None:
        """Has `slot`, which has all layers, serve from now on."""
        slot.turn(State.SERVING, self._loop.now)
        self._loop.spawn(self._serve(slot), name=slot.name)
        self.handover.dispatch()

    async def _serve(self, slot: Slot) -> None:
        try:
            while slot.state in HELD and not slot.gone:
                slot.wake.clear()
                if slot.role is Role.COLOCATED:
                    await self._both(slot)
                elif slot.running:
                    await self._decode(slot)
                elif slot.role is Role.PREFILL and slot.state is State.SERVING and not slot.paired:
                    await self._prefill(slot)
                else:
                    await self._loop.wait(slot.wake)
        except InstanceLost:
            pass  # this instance has died; its requests are computed again below
        if slot.gone or slot.instance.lost is not None:
            lost, slot.running = slot.running, []
            self.again(lost, slot)

    async def _decode(self, slot: Slot) -> None:
        """Decodes until a request ends, or until another request's KV has come."""
        await slot.instance.execute(Batch(decodes=list(slot.running)), stop=slot.wake)
        slot.running = [request for request in slot.running if not request.finished]
        self.handover.dispatch()

    async def _both(self, slot: Slot) -> None:
        """One iteration of a colocated instance: prompts first, with a step of its decodes; without
        prompts it decodes until one comes. A prompt is admitted if its output has room too (as in
        the published code)."""
        batch: list[Request] = []
        if slot.state is State.SERVING and not slot.paired:
            kv = slot.instance.kv
            serving = self.fleet.of(Role.COLOCATED, State.SERVING)
            takers = sum(not each.paired for each in serving)
            batch = self.prompts.take(lambda request: kv.grow(request, kv_tokens(request)), takers)
        if batch:
            await self._run(batch, slot)
            slot.running = [request for request in slot.running if not request.finished]
            self.handover.dispatch()
        elif slot.running:
            await self._decode(slot)
        else:
            await self._loop.wait(slot.wake)

    async def _prefill(self, slot: Slot) -> None:
        kv = slot.instance.kv
        batch = self.prompts.take(lambda request: kv.grow(request, request.known_tokens))
        if not batch:
            await self._loop.wait(slot.wake)
            return
        await self._run(batch, slot)

    async def _run(self, batch: Sequence[Request], slot: Slot) -> None:
        slot.batch = self._loop.now, sum(request.known_tokens for request in batch)
        await self._compute(batch, slot)
        slot.batch = None
        slot.rouse()

    async def _compute(self, batch: Sequence[Request], slot: Slot) -> None:
        """Prefills `batch` beside the slot's decodes, and hands its KV over. If the instance dies,
        the batch is queued again, and InstanceLost is raised."""
        chunks = [(request, request.known_tokens - request.computed_tokens) for request in batch]
        try:
            await slot.instance.execute(Batch(chunks=chunks, decodes=list(slot.running)))
        except InstanceLost:
            self.again(batch, slot)
            raise
        self.prefilled(batch, slot)

    def prefilled(self, batch: Sequence[Request], slot: Slot) -> None:
        """Hands over the requests of `batch`, whose last layers `slot` has run."""
        for request in batch:
            if not request.finished:
                self.handover.offer(request, slot)
