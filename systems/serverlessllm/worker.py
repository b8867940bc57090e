"""A worker of Aegaeon's simulated baselines: a queue that is run front to back on one device.

Prefill before decode, as many requests at the front as are of one model and fit; another model at
the front: a swap, and whatever was unfinished has lost its KV. The order of the queue is not the
worker's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from harness.clock import Event, Loop
from harness.device.block_pool import BlockPool
from harness.device.pooled import PooledInstance
from harness.placement import Profile
from harness.request import Batch, Request
from systems.serverlessllm.loading import Loader


def front(queue: Sequence[Request], kv: BlockPool) -> list[Request]:
    """The requests at the front that are of one model and whose KV fits together."""
    chosen: list[Request] = []
    room = kv.free_blocks + sum(kv.held.get(request.request_id, 0) for request in queue)
    for request in queue:
        room -= kv.blocks_for(request.known_tokens)
        if request.model != queue[0].model or room < 0:
            break
        chosen.append(request)
    return chosen


def iteration(chosen: Sequence[Request]) -> Batch:
    """All prompts that are not computed, in one iteration; with none, a decode of everything."""
    prompts = [(r, r.known_tokens - r.computed_tokens) for r in chosen if not r.decoding]
    return Batch(chunks=prompts) if prompts else Batch(decodes=list(chosen))


@dataclass(slots=True, frozen=True)
class Decoding:
    """Decode steps under way. Each takes `growth_s` longer than the one before."""

    requests: Sequence[Request]
    start_s: float
    step_s: float
    growth_s: float

    def steps(self, now_s: float) -> int:
        """Those that are over by now."""
        elapsed_s, linear = now_s - self.start_s, self.step_s - self.growth_s / 2
        root = sqrt(linear * linear + 2 * self.growth_s * elapsed_s)
        return int(2 * elapsed_s / (linear + root) + 1e-9)

    def last_step_s(self, now_s: float) -> float:
        """When the latest of them ended; the start, where there is none."""
        steps = self.steps(now_s)
        return self.start_s + steps * (self.step_s + self.growth_s * (steps - 1) / 2)


class Worker:
    def __init__(
        self,
        instance: PooledInstance,
        loader: Loader,
        loop: Loop,
        profile: Profile,
        drop: Callable[[Request], None],
    ) -> None:
        self.queue: list[Request] = []
        self.model: str | None = None  # in place or being loaded
        self.name = instance.name
        self._instance, self._loader, self._loop = instance, loader, loop
        self._profile, self._drop = profile, drop
        self._doomed: set[int] = set()  # request_ids
        self._wake = Event(loop)
        self._last_batch_s = 0.0
        self._decoding: Decoding | None = None

    def last_batch_s(self) -> float:
        """When the last iteration ended; one is in progress, perhaps."""
        if self._decoding is None:
            return self._last_batch_s
        return max(self._decoding.last_step_s(self._loop.now), self._last_batch_s)

    def ahead_tokens(self) -> dict[int, int]:
        """By request_id: tokens that the steps in progress have added to what requests say."""
        if self._decoding is None:
            return {}
        steps = self._decoding.steps(self._loop.now)
        return {request.request_id: steps for request in self._decoding.requests}

    def put(self, queue: list[Request]) -> None:
        """A new queue, of which the next iteration makes a batch."""
        self.queue = queue
        self._wake.set()

    def doom(self, requests: Iterable[Request]) -> None:
        """Has the next iteration drop them."""
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
        batch = iteration(chosen)
        if batch.decodes:
            self._decoding = self._expected(batch)
        await self._instance.execute(batch, stop=self._wake)
        self._last_batch_s, self._decoding = self._loop.now, None

    def _expected(self, batch: Batch) -> Decoding:
        spec, num = self._instance.models[batch.decodes[0].model], len(batch.decodes)
        context = sum(request.known_tokens for request in batch.decodes)
        step_s = self._profile.decode_step_s(spec, num, context)
        next_s = self._profile.decode_step_s(spec, num, context + num)
        return Decoding(batch.decodes, self._loop.now, step_s, next_s - step_s)

    def _evict(self, request: Request) -> None:
        if request.request_id in self._instance.kv(request.model).held:
            self._instance.evict(request)
