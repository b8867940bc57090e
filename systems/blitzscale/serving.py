"""Serves while instances come, go, change their role and die.

With prefills and decodes on different instances (DistServe), there are loops of both, and KV goes
from one to the other. Colocated instances (§5.4) have one loop, whose iterations have prompts and
decodes together.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from harness.errors import InstanceLost
from harness.request import Batch, Request
from systems.blitzscale.handover import Handover, kv_tokens
from systems.blitzscale.instances import LOADED, Fleet, Role, Slot, State


class Prompts:
    """The prompts that wait for a prefill: one queue for all instances of a model, first come first
    served.

    An instance takes its next batch when it is free, so queued requests are always divided evenly.
    Redirecting requests (§5.2, steps 1 and 3) then only means that another instance takes from the
    queue.
    """

    def __init__(self, batch_tokens: int) -> None:
        """batch_tokens: of a batch at most; a longer prompt is a batch of its own."""
        self._batch_tokens = batch_tokens
        self._waiting: deque[Request] = deque()  # in order of arrival
        self.tokens = 0
        self.kv_tokens = 0  # of KV that they will hold at their end

    def put(self, requests: Iterable[Request]) -> None:
        """Queues requests by arrival, also those that come back to be computed again."""
        for request in requests:
            if not self._waiting or _order(self._waiting[-1]) <= _order(request):
                self._waiting.append(request)
            else:
                insort(self._waiting, request, key=_order)
            self.tokens += request.known_tokens
            self.kv_tokens += kv_tokens(request)

    def take(self, has_room: Callable[[Request], bool], takers: int = 1) -> list[Request]:
        """Removes and returns the next batch; empty if no request waits or has room.

        has_room: whether a request has room; if so, it reserves the room. takers: instances among
        which the waiting tokens are divided evenly.
        """
        batch: list[Request] = []
        left = min(self._batch_tokens, -(-self.tokens // takers))
        while self._waiting:
            request = self._waiting[0]
            left -= request.known_tokens
            if (batch and left < 0) or not has_room(request):
                break
            batch.append(self._waiting.popleft())
        self.tokens -= sum(request.known_tokens for request in batch)
        self.kv_tokens -= sum(kv_tokens(request) for request in batch)
        return batch


def _order(request: Request) -> tuple[float, int]:
    """The order of service: by arrival."""
    return request.arrival_s, request.request_id


class Serving:
    """The loops of one model's instances."""

    def __init__(self, fleet: Fleet, prompts: Prompts) -> None:
        self.fleet, self.prompts = fleet, prompts
        self.handover = Handover(fleet, self.recompute)

    def submit(self, request: Request) -> None:
        self.prompts.put([request])
        self.fleet.wake(Role.PREFILL)

    def recompute(self, requests: Sequence[Request], slot: Slot) -> None:
        """Has `requests` computed again: KV that `slot` had of them is lost."""
        left = [request for request in requests if not request.finished]
        for request in left:
            slot.instance.evict(request)
            self.handover.free(request)
        self.prompts.put(request for request in left if not request.failed)
        self.fleet.wake(Role.PREFILL)

    def begin(self, slot: Slot) -> None:
        """Has `slot`, which has all layers, serve from now on."""
        slot.enter(State.SERVING)
        self.fleet.loop.spawn(self._serve(slot), name=slot.name)
        self.handover.dispatch()

    async def _serve(self, slot: Slot) -> None:
        try:
            while slot.state in LOADED and not slot.lost:
                slot.wake.clear()
                batch = self._next_prompts(slot)
                if batch:
                    await self._prefill(batch, slot)
                elif slot.running:
                    await self._decode(slot)
                else:
                    await self.fleet.loop.wait(slot.wake)
        except InstanceLost:
            pass  # this instance has died; its requests are computed again below
        if slot.lost:
            lost, slot.running = slot.running, []
            self.recompute(lost, slot)

    def _next_prompts(self, slot: Slot) -> list[Request]:
        """The prompts of the slot's next iteration; none if it has none to do.

        A prefill that was a decode ends its decodes first. A colocated instance has a step of its
        decodes beside its prompts; without prompts it decodes until one comes. There a prompt is
        admitted if its output has room too (as in the published code).
        """
        if slot.state is not State.SERVING or slot.paired or not self.prompts.tokens:
            return []
        kv = slot.instance.kv
        if slot.role is Role.COLOCATED:
            serving = self.fleet.of(Role.COLOCATED, State.SERVING)
            takers = sum(not each.paired for each in serving)
            return self.prompts.take(lambda request: kv.grow(request, kv_tokens(request)), takers)
        if slot.role is Role.DECODE or slot.running:
            return []
        return self.prompts.take(lambda request: kv.grow(request, request.known_tokens))

    async def _decode(self, slot: Slot) -> None:
        """Decodes until a request ends, or until another request's KV has come."""
        await slot.instance.execute(Batch(decodes=list(slot.running)), stop=slot.wake)
        self._decoded(slot)

    def _decoded(self, slot: Slot) -> None:
        slot.running = [r for r in slot.running if r.generated_tokens < r.output_tokens]
        self.handover.dispatch()

    async def _prefill(self, requests: Sequence[Request], slot: Slot) -> None:
        """Prefills `requests` beside the slot's decodes, and hands their KV over. If the instance
        dies, they are queued again, and InstanceLost is raised."""
        slot.batch = self.fleet.loop.now, sum(request.known_tokens for request in requests)
        chunks = [(each, each.known_tokens - each.computed_tokens) for each in requests]
        try:
            await slot.instance.execute(Batch(chunks=chunks, decodes=list(slot.running)))
        except InstanceLost:
            self.recompute(requests, slot)
            raise
        self.prefilled(requests, slot)
        slot.batch = None
        slot.notify()
        if slot.role is Role.COLOCATED:
            self._decoded(slot)

    def prefilled(self, requests: Sequence[Request], slot: Slot) -> None:
        """Hands over requests whose last layers `slot` has run."""
        for request in requests:
            if not request.finished:
                self.handover.offer(request, slot)
