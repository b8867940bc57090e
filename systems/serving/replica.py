"""The replica loop: continuous batching on one executor, for every system that serves so."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from math import inf

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.device.block_pool import BlockPool
from harness.device.instance import Executor
from harness.request import Batch, Request
from systems.serving.iteration import Limits, schedule_iteration

Order = Callable[[Request], float]


@mypyc_attr(allow_interpreted_subclasses=True)
class Replica:
    """One executor with its queues, served by `schedule_iteration` over the blocks of `kv`.

    order: the key by which the queue is kept sorted; it must not change for a request. None: by
    arrival. max_steps: decode steps of one `execute` at most; None: no limit.

    A system that does more than vLLM overrides the steps of an iteration: `form` (before and after
    it calls `schedule`), `preempt`, `may_stop`, `executed`. They may set `limits`, `max_steps`,
    `look_s`, `forms` and `closing`. InstanceLost ends the loop, as any error does.
    """

    def __init__(
        self,
        executor: Executor,
        kv: BlockPool,
        loop: Loop,
        limits: Limits,
        *,
        order: Order | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.name = executor.name
        self.executor, self.kv, self.loop = executor, kv, loop
        self.limits, self.max_steps = limits, max_steps
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.wake = Event(loop)  # has the loop schedule again
        self.look_s = inf  # when to schedule again if nothing wakes it before
        self.idle = False  # has nothing to run, and waits
        self.closing = False  # runs no further iteration
        self.lost = False  # its executor has died; set by the system, which has to know
        self._order = order
        # Whether `form` makes the next batch, and not `schedule` alone. A coroutine for each would
        # cost simulations a fifth of their speed.
        self.forms = type(self).form is not Replica.form

    def submit(self, request: Request) -> None:
        if self._order is None:
            self.waiting.append(request)
        else:
            insort(self.waiting, request, key=self._order)
        self.wake.set()

    async def serve(self) -> None:
        wake = self.wake
        while not self.closing:
            wake.clear()
            batch = await self.form() if self.forms else self.schedule(self.waiting)
            if not batch.chunks and not batch.decodes:
                if not wake.is_set:
                    self.idle = True
                    await self.loop.wait(wake, until=self.look_s)
                    self.idle = False
                continue
            stop = wake if wake.is_set or self.may_stop() else None
            steps = await self.executor.execute(batch, max_steps=self.max_steps, stop=stop)
            before = len(self.running)
            self.running = [r for r in self.running if r.generated_tokens < r.output_tokens]
            self.executed(steps, before - len(self.running))

    async def form(self) -> Batch:
        """Forms the batch of the next iteration; an empty one is not run."""
        return self.schedule(self.waiting)

    def schedule(self, queue: deque[Request]) -> Batch:
        """A batch of running requests, and of requests of `queue`, which those that it admits
        leave."""
        return schedule_iteration(self.running, queue, self.kv, self.limits, self.preempt)

    def preempt(self, request: Request) -> None:
        """Frees the request's KV; it waits at the head of the queue to be computed again."""
        self.executor.evict(request)
        self.wake.set()  # an iteration that preempts admits no request: look again after it

    def may_stop(self) -> bool:
        """Whether a run of decodes ends as soon as the replica is woken: only if an arrival can be
        admitted at once, because none waits before it and a seat is free."""
        return not self.waiting and len(self.running) < self.limits.max_num_seqs

    def executed(self, steps: int, ended: int) -> None:
        """Comes after `steps` iterations, in which `ended` requests have finished."""
