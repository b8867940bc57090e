"""Serves a group: one instance, or a pipeline with as many micro-batches as stages (§4.2, §4.3).

The iterations of each micro-batch are vLLM's (`schedule_iteration`), over the memory that all
micro-batches share. New requests enter at the first stage. If memory runs out, the newest request
of a micro-batch is preempted by recompute. A micro-batch with others beside it takes few steps at
once, since a run of decodes holds the blocks of all its steps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from harness.clock import Event, Loop, Task
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.group import Group
from systems.kunserve.microbatch import deal
from systems.serving.iteration import Limits, schedule_iteration


@dataclass(slots=True)
class _MicroBatch:
    wake: Event  # ends its run of decodes at the next step boundary
    running: list[Request] = field(default_factory=list)
    idle: bool = False  # has nothing to run


class Server:
    """The server of one group.

    executor: the instance, or the pipeline. steps_beside: decode steps at most while memory is
    shared with others. budget: tokens of the next iteration, given the server.
    """

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
        self.paused: list[Request] = []  # hold KV, and run once it has been exchanged
        self.moving: set[int] = set()  # ids of requests whose KV is on a link now
        self.aside: list[Request] = []  # preempted while their KV was on a link
        self.shared = len(group) > 1  # more than one micro-batch uses the members' memory
        self.leaving: Callable[[Request], bool] | None = None  # takes a request if it may leave
        # Whether a request's last block is on a link to another server.
        self.last_block: Callable[[Request], bool] | None = None
        self._loop, self._limits, self._steps_beside = loop, limits, steps_beside
        self._budget = budget
        self._batches = [_MicroBatch(Event(loop)) for _ in group]
        self._tasks: list[Task] = []
        self._closing = False
        self._preempted = False  # a request was preempted in this iteration

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
        """Tokens still to be prefilled, of running and waiting requests."""
        lacking = sum(r.known_tokens - r.computed_tokens for r in self.running if not r.decoding)
        return lacking + sum(request.known_tokens for request in [*self.aside, *self.waiting])

    @property
    def batch_tokens(self) -> int:
        """Tokens that the micro-batches compute at once, decodes included."""
        return self._limits.max_num_batched_tokens * len(self._batches)

    def start(self) -> None:
        """Starts a task for each micro-batch."""
        for number, batch in enumerate(self._batches):
            name = f"{self.name}/{number}"
            self._tasks.append(self._loop.spawn(self._serve(batch), name=name))

    def submit(self, request: Request) -> None:
        """Queues the request behind all waiting requests of its priority (§4.3)."""
        place = bisect_right(self.waiting, -request.priority, key=_urgency)
        self.waiting.insert(place, request)
        if len(self.waiting) == 1 or any(batch.idle for batch in self._batches):
            self.wake()

    def join(self, requests: Sequence[Request]) -> None:
        """Has `requests` run, spread over the micro-batches. Their KV is here."""
        contexts = {request.request_id: request.computed_tokens for request in requests}
        by_id = {request.request_id: request for request in requests}
        lightest = sorted(self._batches, key=lambda batch: len(batch.running))
        for batch, dealt in zip(lightest, deal(contexts, len(self._batches)), strict=True):
            batch.running += [by_id[request_id] for request_id in dealt]
            batch.running.sort(key=lambda r: (r.arrival_s, r.request_id))
        self.wake()

    def wake(self, *, idle: bool = False) -> None:
        """Has the micro-batches schedule again; idle: only those that have nothing to run."""
        for batch in self._batches:
            if batch.idle or not idle:
                batch.wake.set()

    def moved(self, request: Request) -> None:
        """Tells that a move of the request's KV has ended."""
        if request in self.aside and request.request_id not in self.moving:
            self.aside.remove(request)
            self._wait_again(request)
        self.wake(idle=self.leaving is None)

    def stop(self) -> None:
        """Runs no further iteration and lets no request leave. Servers that hand requests to each
        other must all stop before one of them is closed."""
        self._closing = True
        self.wake()

    async def close(self) -> tuple[list[Request], list[Request]]:
        """Ends at the next step boundary. Returns (requests with KV, waiting requests). No KV of
        the server may be on a link."""
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
        """Removes a request that now runs elsewhere."""
        for batch in self._batches:
            if request in batch.running:
                batch.running.remove(request)
        if request in self.paused:
            self.paused.remove(request)

    def resume(self, request: Request) -> None:
        """Lets a request run again that was paused for its last block; the block did not move."""
        if request in self.paused:
            self.paused.remove(request)
            self.join([request])

    def preempt(self, request: Request) -> None:
        """Frees the KV of a paused request, which waits again."""
        self.executor.evict(request)
        self.paused.remove(request)
        self._wait_again(request)

    def _wait_again(self, request: Request) -> None:
        """Queues the request before all waiting requests of its priority."""
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
            return  # the system hears of the death and closes this server

    def _evict(self, request: Request) -> None:
        self.executor.evict(request)
        self._preempted = True
        self.wake(idle=True)

    def _set_aside(self) -> None:
        """Sorts preempted requests into the queue by priority. A request whose KV is on a link is
        set aside until the move has ended."""
        if self._preempted:
            in_order = sorted(self.waiting, key=_urgency)
            self.waiting.clear()
            self.waiting.extend(in_order)
            self._preempted = False
        for request in [r for r in self.waiting if r.request_id in self.moving]:
            self.waiting.remove(request)
            self.aside.append(request)

    def _pause(self, batch: _MicroBatch) -> None:
        """Pauses requests whose last block is being sent to another server."""
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
        """The limits of the next iteration. Seats are limited, so that waiting requests spread
        evenly over the micro-batches."""
        share = -(-(len(self.running) + len(self.waiting)) // len(self._batches))
        seats = max(1, min(self._limits.max_num_seqs, max(share, len(batch.running))))
        return replace(self._limits, max_num_seqs=seats, max_num_batched_tokens=self._budget(self))

    def _max_steps(self, decodes: Sequence[Request]) -> int | None:
        """Decode steps of the next run; None: no limit. If memory is short, as many as fit into the
        blocks that the requests hold."""
        kv = self.executor.kv
        if not self.shared:
            return None
        if kv.free_blocks >= 2 * len(self.running):
            return self._steps_beside
        inside = [kv.block_tokens - r.computed_tokens % kv.block_tokens for r in decodes]
        return min([self._steps_beside, *inside])


def _urgency(request: Request) -> int:
    return -request.priority
