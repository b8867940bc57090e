"""vLLM with KV swap: what is preempted goes to host memory instead of being computed again.

KunServe compares with it (§2.3 (b), Fig. 4). "Swapping some KVCache to second-tier memory" makes
room for pending requests; "existing systems only swap out a small number of requests (e.g., default
1 in vllm)". Who is swapped out, who returns and who is admitted meanwhile is vLLM's of 2024
(vllm/core/scheduler.py): the newest goes, the first that went returns first, and nobody waiting is
admitted while one is out, but the one whom it made room for, which is the paper's. Copies are
gathered, not block by block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.clock import Event, Loop
from harness.device.elastic import ElasticInstance
from harness.device.elastic_cluster import ElasticCluster
from harness.errors import RunError
from harness.placement import Elastic
from harness.request import Batch, Request

PREEMPTION = ("recompute", "kv_swap", "parameter_swap")
# The next iteration's batch of running and waiting requests; whom it has no memory for is evicted.
Schedule = Callable[[list[Request], deque[Request], Callable[[Request], None]], Batch]


@dataclass(kw_only=True, slots=True)
class SwapConfig:
    requests: int | None  # of an instance, swapped out at once; None: as many as `bytes` hold
    bytes: int  # of an instance: kv_swap: of KV swapped out at once; parameter_swap: gained for KV
    host_bytes: int  # of a node's memory, for each of its instances

    def __post_init__(self) -> None:
        for name in ("requests", "bytes", "host_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"system.swap.{name}={value} must be at least 1")


def swapping(preemption: str, config: SwapConfig) -> dict[str, Any]:
    """What a placement has besides."""
    if preemption == "kv_swap":
        return {"elastic": Elastic()}
    return {"gained_bytes": config.bytes} if preemption == "parameter_swap" else {}


def lacking_blocks(running: Sequence[Request], held: Mapping[int, int], block_tokens: int) -> int:
    """KV blocks that one more token of each of `running` takes."""
    return sum(
        max(0, -(-request.known_tokens // block_tokens) - held.get(request.request_id, 0))
        for request in running
    )


class SwapReplica:
    """One instance with its queues and its part of the host's memory."""

    def __init__(
        self, instance: ElasticInstance, cluster: ElasticCluster, loop: Loop, schedule: Schedule,
        max_num_seqs: int, config: SwapConfig,
    ) -> None:  # fmt: skip
        self._instance, self._cluster, self._loop = instance, cluster, loop
        self._schedule, self._max_num_seqs, self._config = schedule, max_num_seqs, config
        self._store = cluster.dram_store(instance.memory.node, config.host_bytes, instance.layout)
        self._block_bytes = instance.page_bytes * len(instance.kv.all_groups) * instance.model.tp
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._swapped: deque[Request] = deque()  # the first that went first
        self._wake = Event(loop)
        self.name, self.model = instance.name, instance.model

    def submit(self, request: Request) -> None:
        self._waiting.append(request)
        self._wake.set()

    async def serve(self) -> None:
        while True:
            self._wake.clear()
            await self._swap_in()
            await self._keep_going()
            admitted = await self._make_room()
            batch = self._schedule(self._running, admitted, self._evict)
            self._requeue(admitted)
            if not batch.chunks and not batch.decodes:
                if self._swapped and not self._running:
                    raise RunError(f"{self.name}: KV that was swapped out has no room to return")
                await self._loop.wait(self._wake)
                continue
            may_admit = not self._waiting and not self._swapped
            stop = self._wake if may_admit or self._wake.is_set else None
            await self._instance.execute(batch, stop=stop)
            self._running = [request for request in self._running if not request.finished]

    async def _swap_in(self) -> None:
        """Those who fit with a block to spare for each who runs, as many seats as there are."""
        kv = self._instance.kv
        while self._swapped and len(self._running) < self._max_num_seqs:
            request = self._swapped[0]
            wanted = self._store.kv.held[request.request_id] + len(self._running) + 1
            if wanted > kv.free_blocks and self._running:
                return
            await self._move(request, out=False)
            self._swapped.popleft()
            self._running.append(request)
            self._running.sort(key=lambda r: (r.arrival_s, r.request_id))

    async def _keep_going(self) -> None:
        """Swaps the newest out until those who run have blocks for their next token; where no more
        may be out, they are computed again (`schedule`)."""
        kv = self._instance.kv
        while len(self._running) > 1:
            lacking = lacking_blocks(self._running, kv.held, kv.block_tokens)
            if lacking <= kv.free_blocks or not self._may_go(self._running[-1]):
                return
            await self._swap_out()

    async def _make_room(self) -> deque[Request]:
        """Whom of the waiting ones to admit: all in their order, or while somebody is out only the
        first, if one more may go and that is enough for it."""
        if not self._waiting:
            return self._take(0)
        kv = self._instance.kv
        first = kv.blocks_for(self._waiting[0].known_tokens)
        if first <= kv.free_blocks or not self._running:
            return self._take(0 if self._swapped else len(self._waiting))
        newest = self._running[-1]
        enough = kv.free_blocks + kv.held.get(newest.request_id, 0) >= first
        if not enough or not self._may_go(newest):
            return self._take(0)
        await self._swap_out()
        return self._take(1)

    def _take(self, count: int) -> deque[Request]:
        return deque(self._waiting.popleft() for _ in range(count))

    def _requeue(self, left: deque[Request]) -> None:
        self._waiting.extendleft(reversed(left))

    def _may_go(self, request: Request) -> bool:
        """Whether one more may be out. A prompt of which little is computed is cheaper again."""
        if not request.decoding:
            return False
        if self._config.requests is not None:
            return len(self._swapped) < self._config.requests
        blocks = sum(self._store.kv.held[each.request_id] for each in self._swapped)
        blocks += self._instance.kv.held[request.request_id]
        return blocks * self._block_bytes <= self._config.bytes

    async def _swap_out(self) -> None:
        request = self._running.pop()
        await self._move(request, out=True)
        self._swapped.append(request)

    async def _move(self, request: Request, *, out: bool) -> None:
        ends = (self._instance, self._store) if out else (self._store, self._instance)
        purpose = "swap out" if out else "swap in"
        layers = range(self.model.num_layers)
        if not await self._cluster.move_kv([request], layers, *ends, purpose=purpose):
            raise RunError(f"{self.name}: no room to {purpose} request {request.request_id}")

    def _evict(self, request: Request) -> None:
        self._instance.evict(request)
        self._wake.set()  # nobody is admitted in an iteration that preempts: look again after it
