"""A group at work: one instance, or a pipeline with as many micro-batches as stages (§4.2, §4.3).

The iterations of each micro-batch are vLLM's (`schedule_iteration`), over the memory that all of
them share. So new requests enter at the first stage, and recompute preemption is what is left
where memory runs out: the newest of a micro-batch waits again. A micro-batch with others beside it
takes few steps at once, for a run of decodes holds the blocks of all its steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.clock import Event, Loop, Task
from harness.device.elastic import ElasticInstance
from harness.device.pipeline import Pipeline
from harness.errors import InstanceLost
from harness.request import Request
from systems.baselines.vllm import Limits, schedule_iteration
from systems.kunserve.group import Group
from systems.kunserve.microbatch import deal


@dataclass(slots=True)
class _MicroBatch:
    wake: Event  # ends its run of decodes at the next step boundary
    running: list[Request] = field(default_factory=list)
    idle: bool = False  # nothing that it could run


class Server:
    """`prompt_tokens`: of the limits, given the server's waiting requests."""

    def __init__(
        self,
        group: Group,
        executor: ElasticInstance | Pipeline,
        loop: Loop,
        limits: Limits,
        steps_beside: int,
        budget: Callable[[Server], int],
    ) -> None:
        self.group, self.executor = group, executor
        self.name = executor.name
        self.waiting: deque[Request] = deque()
        self.paused: list[Request] = []  # they hold KV, and run when it has been exchanged
        self.moving: set[int] = set()  # requests whose KV is on a link now
        self.aside: list[Request] = []  # preempted while their KV was on a link
        self.shared = len(group) > 1  # its members' memory is not for one micro-batch alone
        self.leaving: Callable[[Request], bool] | None = None  # takes requests that may go
        self.last_block: Callable[[Request], bool] | None = None  # is on a link to another server
        self._loop, self._limits, self._steps_beside = loop, limits, steps_beside
        self._budget = budget
        self._batches = [_MicroBatch(Event(loop)) for _ in group]
        self._tasks: list[Task] = []
        self._closing = False
        self._preempted = False  # in this iteration, so that `waiting` has it first

    @property
    def running(self) -> list[Request]:
        return [request for batch in self._batches for request in batch.running]

    @property
    def empty(self) -> bool:
        return not (self.running or self.paused or self.aside or self.waiting)

    @property
    def free_seats(self) -> int:
        return self._limits.max_num_seqs * len(self._batches) - len(self.running)

    @property
    def lacking_tokens(self) -> int:
        """Of prompts, or of what is to be computed again, in tokens."""
        lacking = sum(r.known_tokens - r.computed_tokens for r in self.running if not r.decoding)
        return lacking + sum(request.known_tokens for request in [*self.aside, *self.waiting])

    @property
    def batch_tokens(self) -> int:
        """That its micro-batches take at once, decodes included."""
        return self._limits.max_num_batched_tokens * len(self._batches)

    def start(self) -> None:
        for number, batch in enumerate(self._batches):
            name = f"{self.name}/{number}"
            self._tasks.append(self._loop.spawn(self._serve(batch), name=name))

    def submit(self, request: Request) -> None:
        """Behind all that wait and are as important (§4.3: the dispatcher has priorities)."""
        place = bisect_right(self.waiting, -request.priority, key=_urgency)
        self.waiting.insert(place, request)
        if len(self.waiting) == 1 or any(batch.idle for batch in self._batches):
            self.wake()

    def join(self, requests: Sequence[Request]) -> None:
        """Has requests run whose KV is here, spread over the micro-batches."""
        contexts = {request.request_id: request.computed_tokens for request in requests}
        by_id = {request.request_id: request for request in requests}
        lightest = sorted(self._batches, key=lambda batch: len(batch.running))
        for batch, dealt in zip(lightest, deal(contexts, len(self._batches)), strict=True):
            batch.running += [by_id[request_id] for request_id in dealt]
            batch.running.sort(key=lambda r: (r.arrival_s, r.request_id))
        self.wake()

    def wake(self, *, idle: bool = False) -> None:
        """Has the micro-batches look again, or only those that had nothing to do."""
        for batch in self._batches:
            if batch.idle or not idle:
                batch.wake.set()

    def moved(self, request: Request) -> None:
        """The request's KV is on no link any more, or on one less."""
        if request in self.aside and request.request_id not in self.moving:
            self.aside.remove(request)
            self._wait_again(request)
        self.wake(idle=self.leaving is None)

    def stop(self) -> None:
        """Runs no further iteration, and lets nobody go: of servers that hand requests to one
        another all stop before any is closed."""
        self._closing = True
        self.wake()

    async def close(self) -> tuple[list[Request], list[Request]]:
        """Ends at the next step boundary: who had KV, and who waited. Its KV must be on no link."""
        self.stop()
        for task in self._tasks:
            await self._loop.wait(task.finished)
        running = self.running + self.paused
        waiting = [*self.aside, *self.waiting]
        for batch in self._batches:
            batch.running = []
        self.paused, self.aside = [], []
        self.waiting.clear()
        return [request for request in running if not request.finished], waiting

    def give_up(self, request: Request) -> None:
        """The request's KV is elsewhere, and it runs there."""
        for batch in self._batches:
            if request in batch.running:
                batch.running.remove(request)
        if request in self.paused:
            self.paused.remove(request)

    def resume(self, request: Request) -> None:
        """It was paused for its last block, which did not go."""
        if request in self.paused:
            self.paused.remove(request)
            self.join([request])

    def preempt(self, request: Request) -> None:
        """A paused request gives up its KV and waits again."""
        self.executor.evict(request)
        self.paused.remove(request)
        self._wait_again(request)

    def _wait_again(self, request: Request) -> None:
        """Before all that wait and are as important."""
        self.waiting.insert(bisect_left(self.waiting, -request.priority, key=_urgency), request)

    async def _serve(self, batch: _MicroBatch) -> None:
        try:
            while not self._closing:
                batch.wake.clear()
                self._let_go(batch)
                self._pause(batch)
                before = self.waiting if self.leaving is None else deque[Request]()
                work = schedule_iteration(
                    batch.running, before, self.executor.kv, self._limits_of(batch), self._evict
                )
                if before is not self.waiting:
                    self.waiting.extend(before)
                self._set_aside()
                if not work.chunks and not work.decodes:
                    if self.leaving is not None and self.waiting:
                        continue
                    batch.idle = True
                    await self._loop.wait(batch.wake)
                    batch.idle = False
                    continue
                await self.executor.execute(
                    work, max_steps=self._max_steps(work.decodes), stop=batch.wake
                )
                before_ends = len(batch.running)
                batch.running = [r for r in batch.running if not r.finished]
                if len(batch.running) < before_ends:
                    self.wake(idle=True)
        except InstanceLost:
            return  # whoever hears of the death closes this

    def _evict(self, request: Request) -> None:
        self.executor.evict(request)
        self._preempted = True
        self.wake(idle=True)

    def _set_aside(self) -> None:
        """A preempted request waits behind more important ones, and may not come back while its KV
        is on a link."""
        if self._preempted:
            in_order = sorted(self.waiting, key=_urgency)
            self.waiting.clear()
            self.waiting.extend(in_order)
            self._preempted = False
        for request in [r for r in self.waiting if r.request_id in self.moving]:
            self.waiting.remove(request)
            self.aside.append(request)

    def _pause(self, batch: _MicroBatch) -> None:
        """Requests that leave for another server do not run while their last block is sent."""
        if self.last_block is not None:
            gone = [r for r in batch.running if self.last_block(r)]
            self.paused += gone
            batch.running = [r for r in batch.running if r not in gone]

    def _let_go(self, batch: _MicroBatch) -> None:
        if self.leaving is None:
            return
        batch.running = [r for r in batch.running if not self.leaving(r)]
        waiting = [request for request in self.waiting if not self.leaving(request)]
        self.waiting.clear()
        self.waiting.extend(waiting)

    def _limits_of(self, batch: _MicroBatch) -> Limits:
        """Waiting requests are shared out: none of the micro-batches is to be much the fullest."""
        share = -(-(len(self.running) + len(self.waiting)) // len(self._batches))
        seats = max(1, min(self._limits.max_num_seqs, max(share, len(batch.running))))
        return replace(self._limits, max_num_seqs=seats, max_num_batched_tokens=self._budget(self))

    def _max_steps(self, decodes: Sequence[Request]) -> int | None:
        """Where memory is short, as many as the blocks that they hold have room for."""
        kv = self.executor.kv
        if not self.shared:
            return None
        if kv.free_blocks >= 2 * len(self.running):
            return self._steps_beside
        inside = [kv.block_tokens - r.computed_tokens % kv.block_tokens for r in decodes]
        return min([self._steps_beside, *inside])


def _urgency(request: Request) -> int:
    return -request.priority
