"""Grouped prefill-phase scheduling: Algorithm 1 (§4.2).

The decisions are pure functions over job queues; `Prefiller` runs one instance's queue. Knows
nothing of decoding: a request that has its first token is handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from harness.clock import Loop
from harness.pooled.instance import PooledInstance
from harness.request import Batch, Request
from systems.aegaeon.estimate import Estimator
from systems.aegaeon.scaling import Scaler

PS_PER_S = 10**12


class Group:
    """Prefill jobs of one model.

    A group takes MAX_GPSIZE requests in all, so that FCFS holds among groups: "executing a request
    does not decrease g.size" (§4.2).
    """

    def __init__(self, model: str) -> None:
        self.model = model
        self.pending = deque[Request]()  # the front one may be running
        self.pending_ps = deque[int]()  # how long each one takes
        self.size = 0  # requests that were ever in the group

    def add(self, request: Request, prefill_ps: int) -> None:
        """Adds the request to the end of the group."""
        self.pending.append(request)
        self.pending_ps.append(prefill_ps)
        self.size += 1


class JobQueue:
    """The groups of one instance, in order of service. `num_pending`: their requests. How long
    these take is kept, as whole picoseconds, whose sum is the same in any order."""

    def __init__(self, estimator: Estimator) -> None:
        self.groups: deque[Group] = deque()
        self.num_pending = 0
        self._estimator = estimator
        self._last: dict[str, Group] = {}  # model -> its last group
        self._switch_of: dict[str, int] = {}  # model -> how long a switch to it takes
        self._prefills_ps = self._switches_ps = 0

    def joinable(self, model: str, max_size: int, *, accumulated: bool) -> Group | None:
        """The first group of `model` with room. accumulated: a group's size is `Group.size`, as in
        the paper; else the number of its pending requests.

        A new group is made where no other has room, and sizes shrink at the front alone: only the
        first group and the model's last can have room.
        """
        last = self._last.get(model)
        if last is not None:
            for group in (self.groups[0], last):
                size = group.size if accumulated else len(group.pending)
                if group.model == model and size < max_size:
                    return group
        return None

    def add(self, request: Request, group: Group | None) -> None:
        """Adds the request to `group`, or (line 13) to a new group at the end."""
        if group is None:
            group = self._last[request.model] = Group(request.model)
            if self.groups:
                self._switches_ps += self._switch_ps(self.groups[-1].model, group.model)
            self.groups.append(group)
        prefill_s = self._estimator.prefill_s(group.model, request.known_tokens)
        group.add(request, picoseconds(prefill_s))
        self._prefills_ps += group.pending_ps[-1]
        self.num_pending += 1

    def pop(self, group: Group) -> None:
        """The front request leaves, and with the last one its `group`, the first."""
        group.pending.popleft()
        self._prefills_ps -= group.pending_ps.popleft()
        self.num_pending -= 1
        if not group.pending:
            self.groups.popleft()
            if self._last[group.model] is group:
                del self._last[group.model]
            if self.groups:
                self._switches_ps -= self._switch_ps(group.model, self.groups[0].model)

    def clear(self) -> None:
        self.groups.clear()
        self._last.clear()
        self.num_pending = self._prefills_ps = self._switches_ps = 0

    def pending_time_s(self, running: str | None) -> float:
        """Line 9: seconds to finish all pending groups, "including execution and auto-scaling
        time". running: the instance's model; a first group of this model needs no switch."""
        if not self.groups:
            return 0.0
        first_ps = self._switch_ps(running, self.groups[0].model)
        return (first_ps + self._switches_ps + self._prefills_ps) / PS_PER_S

    def _switch_ps(self, before: str | None, model: str) -> int:
        if model == before:
            return 0
        known = self._switch_of.get(model)
        if known is None:
            known = self._switch_of[model] = picoseconds(self._estimator.switch_s(model))
        return known


def picoseconds(seconds: float) -> int:
    return round(seconds * PS_PER_S)


def joinable(
    queues: Sequence[JobQueue], model: str, max_size: int, *, accumulated: bool
) -> tuple[int, Group] | None:
    """Lines 4 to 8: the first group of `model` with room, instance by instance, and the index of
    its queue; None: there is none."""
    for index, queue in enumerate(queues):
        group = queue.joinable(model, max_size, accumulated=accumulated)
        if group is not None:
            return index, group
    return None


def least(loads: Sequence[float]) -> int:
    """Lines 10 to 12: the index of the least load, the first among equals."""
    return loads.index(min(loads))


class Prefiller:
    """The job queue of one instance, and its execution from the front; a batch has one request.

    hand_on: takes each request whose prefill is done, finished or not. pop_before_run: the request
    leaves its group before its prefill; a group that is then empty leaves the queue. to_host: a
    request is handed on once host memory has room for its KV, and nothing is prefilled meanwhile.
    """

    def __init__(
        self,
        scaler: Scaler,
        loop: Loop,
        estimator: Estimator,
        hand_on: Callable[[Prefiller, Request], None],
        *,
        pop_before_run: bool,
        to_host: bool,
    ) -> None:
        self.scaler = scaler
        self.instance: PooledInstance = scaler.instance
        self.jobs = JobQueue(estimator)
        self.queue = self.jobs.groups
        self.running: Request | None = None
        self._loop, self._hand_on = loop, hand_on
        self._pop_before_run, self._to_host = pop_before_run, to_host

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
        self.jobs.clear()
        self.running = None
        return held

    def add(self, request: Request, group: Group | None) -> None:
        """Adds the request to `group`, or to a new group at the end of the queue."""
        self.jobs.add(request, group)
        self._prefetch()
        self.scaler.wake.set()

    async def step(self) -> bool:
        """Line 15: prefills one request of the front group. False if the model or room for the KV
        is not there yet; `scaler.wake` is set when to try again, unless it is `crowded`."""
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
            self.jobs.pop(group)
        await self.instance.execute(Batch(chunks=[(request, tokens)]))
        if not self._pop_before_run:
            self.jobs.pop(group)
        if self._to_host and not request.finished:
            await self.instance.claim_in_turn(request)
        self.running = None
        self._hand_on(self, request)
        return True

    def host_has_room(self) -> bool:
        """Whether host memory has room for the KV of the prompt that is next."""
        return self.instance.host_has_room(self.queue[0].pending[0])

    def _make_room(self, request: Request) -> bool:
        if self.instance.kv(request.model).grow(request, request.known_tokens):
            return True
        if not self.scaler.room_is_coming():
            victim = self.scaler.newest()  # one that decodes here, on a unified instance
            if victim is not None and self.scaler.may_save([victim]):
                self.scaler.save(victim)
                self.scaler.room_is_coming()
        return False

    def _prefetch(self) -> None:
        self.scaler.prefetch(self._upcoming())

    def _upcoming(self) -> Iterator[str]:  # compiled, an expression would go through all groups
        for group in self.queue:
            yield group.model

    async def serve(self) -> None:
        while True:
            self.scaler.wake.clear()
            if not self.queue or not await self.step():
                await self._loop.wait(self.scaler.wake)
