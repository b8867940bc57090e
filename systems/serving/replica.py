"""The replica loop: continuous batching on one executor."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable

from harness.clock import Event, Loop
from harness.device.instance import Instance
from harness.request import Request
from systems.serving.iteration import Limits, schedule_iteration

Order = Callable[[Request], float]


class Replica:
    """One instance with its queues, served by `schedule_iteration`.

    order: the key by which the queue is kept sorted; it must not change for a request. None: by
    arrival. max_steps: decode steps of one `execute` at most; None: no limit.
    """

    def __init__(
        self, instance: Instance, loop: Loop, limits: Limits, order: Order | None = None,
        max_steps: int | None = None,
    ) -> None:  # fmt: skip
        self._instance, self._max_steps = instance, max_steps
        self._order = order
        self._loop = loop
        self._limits = limits
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._wake = Event(loop)
        self.name = instance.name
        self.model = instance.model

    def submit(self, request: Request) -> None:
        if self._order is None:
            self._waiting.append(request)
        else:
            insort(self._waiting, request, key=self._order)
        self._wake.set()

    async def serve(self) -> None:
        instance, wake = self._instance, self._wake
        while True:
            wake.clear()
            batch = schedule_iteration(
                self._running, self._waiting, instance.kv, self._limits, self._preempt
            )
            if not batch.chunks and not batch.decodes:
                await self._loop.wait(wake)
                continue
            # An arrival can be admitted at once only if none waits before it and a seat is free.
            admits = not self._waiting and len(self._running) < self._limits.max_num_seqs
            stop = wake if admits or wake.is_set else None
            await instance.execute(batch, max_steps=self._max_steps, stop=stop)
            self._running = [r for r in self._running if r.generated_tokens < r.output_tokens]

    def _preempt(self, request: Request) -> None:
        self._instance.evict(request)
        self._wake.set()  # an iteration that preempts admits no request: look again after it
