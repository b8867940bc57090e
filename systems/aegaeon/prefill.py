"""Grouped prefill-phase scheduling: Algorithm 1 (§4.2).

The decisions are pure functions over job queues; `Prefiller` runs one instance's queue. Knows
nothing of decoding: a request that has its first token is handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.clock import Loop
from harness.pooled.instance import PooledInstance
from harness.request import Batch, Request
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.scaling import Scaler


@dataclass(slots=True, eq=False)
class Group:
    """Prefill jobs of one model.

    A group takes MAX_GPSIZE requests in all, so that FCFS holds among groups: "executing a request
    does not decrease g.size" (§4.2).
    """

    model: str
    pending: deque[Request] = field(default_factory=deque)  # the front one may be running
    size: int = 0  # requests that were ever in the group

    def add(self, request: Request) -> None:
        """Adds the request to the end of the group."""
        self.pending.append(request)
        self.size += 1


JobQueue = deque[Group]


def joinable(
    queues: Sequence[JobQueue], model: str, max_size: int, *, accumulated: bool
) -> tuple[int, Group] | None:
    """Lines 4 to 8: the first group of `model` with room, instance by instance.

    Returns (index of its queue, group), or None. accumulated: a group's size is `Group.size`, as in
    the paper; else the number of its pending requests.
    """
    for index, queue in enumerate(queues):
        for group in queue:
            size = group.size if accumulated else len(group.pending)
            if group.model == model and size < max_size:
                return index, group
    return None


def least(loads: Sequence[float]) -> int:
    """Lines 10 to 12: the index of the least load, the first among equals."""
    return loads.index(min(loads))


def pending_time_s(queue: JobQueue, running: str | None, estimator: Estimator) -> float:
    """Line 9: seconds to finish all pending groups, "including execution and auto-scaling time".

    running: the instance's model; a first group of this model needs no switch.
    """
    total_s, model = 0.0, running
    for group in queue:
        if group.model != model:
            total_s += estimator.switch_s(group.model)
        model = group.model
        total_s += sum(estimator.prefill_s(model, r.known_tokens) for r in group.pending)
    return total_s


class Prefiller:
    """The job queue of one instance, and its execution from the front; a batch has one request.

    hand_on: takes each request whose prefill is done, finished or not. pop_before_run: the request
    leaves its group before its prefill; a group that is then empty leaves the queue.
    """

    def __init__(
        self,
        scaler: Scaler,
        loop: Loop,
        hand_on: Callable[[Prefiller, Request], None],
        *,
        pop_before_run: bool,
    ) -> None:
        self.scaler = scaler
        self.instance: PooledInstance = scaler.instance
        self.queue: JobQueue = deque()
        self.running: Request | None = None
        self._loop, self._hand_on, self._pop_before_run = loop, hand_on, pop_before_run

    @property
    def held(self) -> list[Request]:
        """The requests that are queued or running here."""
        queued = [request for group in self.queue for request in group.pending]
        running = [self.running] if self.running and self.running not in queued else []
        return running + queued

    def give_up(self) -> list[Request]:
        """All requests, which leave: this instance is lost, with the KV of the running one."""
        held = self.held
        if self.running is not None:
            self.instance.evict(self.running)
        self.queue.clear()
        self.running = None
        return held

    def add(self, request: Request, group: Group | None) -> None:
        """Adds the request to `group`, or (line 13) to a new group at the end of the queue."""
        if group is None:
            group = Group(request.model)
            self.queue.append(group)
        group.add(request)
        self._prefetch()
        self.scaler.wake.set()

    async def step(self) -> bool:
        """Line 15: prefills one request of the front group. False if the model or room for the KV
        is not there yet; `scaler.wake` is set when to try again."""
        group = self.queue[0]
        request = group.pending[0]
        if not self.scaler.switch_to(group.model, keep=self.scaler.residents(group.model)):
            return False
        self._prefetch()
        if not self._make_room(request):
            return False
        tokens = request.known_tokens - request.computed_tokens
        self.running = request
        if self._pop_before_run:
            self._pop(group)
        await self.instance.execute(Batch(chunks=[(request, tokens)]))
        if not self._pop_before_run:
            self._pop(group)
        self.running = None
        self._hand_on(self, request)
        return True

    def _pop(self, group: Group) -> None:
        group.pending.popleft()
        if not group.pending:
            self.queue.popleft()

    def _make_room(self, request: Request) -> bool:
        if self.instance.kv(request.model).grow(request, request.known_tokens):
            return True
        if not self.scaler.room_is_coming():
            victim = self.scaler.newest()  # one that decodes here, on a unified instance
            if victim is not None:
                self.scaler.save(victim)
                self.scaler.room_is_coming()
        return False

    def _prefetch(self) -> None:
        self.scaler.prefetch(group.model for group in self.queue)

    async def serve(self) -> None:
        while True:
            self.scaler.wake.clear()
            if not self.queue or not await self.step():
                await self._loop.wait(self.scaler.wake)
