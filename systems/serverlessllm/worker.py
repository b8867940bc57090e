"""A worker of Aegaeon's simulated baselines: runs a queue from front to back on one device.

A batch has the requests at the front that are of one model and fit. Prefill comes before decode. If
another model is at the front, the worker swaps models, and all unfinished requests lose their KV.
The scheduler decides the order of the queue (`artifact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harness.clock import Event, Loop
from harness.device.block_pool import BlockPool
from harness.pooled.instance import PooledInstance
from harness.request import Batch, Request
from systems.serverlessllm.loading import Loader


def front(queue: Sequence[Request], kv: BlockPool) -> list[Request]:
    """The requests at the front that are of one model and whose KV fits together. kv: of that
    model."""
    chosen: list[Request] = []
    room = kv.free_blocks + sum(kv.held.get(request.request_id, 0) for request in queue)
    for request in queue:
        room -= kv.blocks_for(request.known_tokens)
        if request.model != queue[0].model or room < 0:
            break
        chosen.append(request)
    return chosen


def iteration(chosen: Sequence[Request]) -> Batch:
    """All prompts that are not computed yet, in one iteration; if there are none, one decode step
    of all requests."""
    prompts = [(r, r.known_tokens - r.computed_tokens) for r in chosen if not r.decoding]
    return Batch(chunks=prompts) if prompts else Batch(decodes=list(chosen))


class Worker:
    """One device and its queue. drop: takes each request that is dropped."""

    def __init__(
        self, instance: PooledInstance, loader: Loader, loop: Loop, drop: Callable[[Request], None]
    ) -> None:
        self.queue: list[Request] = []
        self.model: str | None = None  # in place or being loaded
        self.name = instance.name
        self._instance, self._loader, self._loop = instance, loader, loop
        self._drop = drop
        self._doomed: set[int] = set()  # request_ids
        self._wake = Event(loop)

    def settle(self) -> float:
        """Brings the progress of requests up to date; returns when the last iteration ended."""
        return self._instance.settle()

    def put(self, queue: list[Request]) -> None:
        """Replaces the queue; the next iteration makes its batch of it."""
        self.queue = queue
        self._wake.set()

    def give_up(self) -> list[Request]:
        """All unfinished requests, which leave: the device is lost, with their KV."""
        self._purge()
        left, self.queue = self.queue, []
        for request in left:
            self._evict(request)
        return left

    def doom(self, requests: Iterable[Request]) -> None:
        """Has the next iteration drop `requests`."""
        self._doomed.update(request.request_id for request in requests)
        self._wake.set()

    async def serve(self) -> None:
        while True:
            self._wake.clear()
            self._purge()
            if not self.queue:
                await self._loop.wait(self._wake)
            elif self.queue[0].model != self.model:
                await self._swap(self.queue[0].model)
            else:
                await self._iterate()

    def _purge(self) -> None:
        for request in self.queue:
            if request.request_id in self._doomed and not request.finished:
                self._evict(request)
                self._drop(request)
        self._doomed.clear()
        self.queue = [r for r in self.queue if not (r.finished or r.failed)]

    async def _swap(self, model: str) -> None:
        self.model = model
        for request in self.queue:
            self._evict(request)
        await self._loader.load(self._instance, model)

    async def _iterate(self) -> None:
        kv = self._instance.kv(self.queue[0].model)
        chosen = front(self.queue, kv)
        for request in self.queue[len(chosen) :]:
            self._evict(request)
        for request in chosen:
            grown = kv.grow(request, request.known_tokens)
            assert grown, request
        await self._instance.execute(iteration(chosen), stop=self._wake)

    def _evict(self, request: Request) -> None:
        if request.request_id in self._instance.kv(request.model).held:
            self._instance.evict(request)
