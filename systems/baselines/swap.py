"""vLLM with KV swap: the KV of a preempted request goes to host memory and is not recomputed.

KunServe compares with it (§2.3 (b), Fig. 4). "Swapping some KVCache to second-tier memory" makes
room for pending requests; "existing systems only swap out a small number of requests (e.g., default
1 in vllm)". The rules are those of vLLM in 2024 (vllm/core/scheduler.py). The newest request is
swapped out. The request that was swapped out first returns first. While a request is out, no
waiting request is admitted; the exception, from KunServe, is the request that the swap made room
for. Where bytes limit what is out and not a number of requests (Fig. 4), waiting requests are
admitted beside it: else the memory that a swap frees would stay empty. The blocks of a request are
gathered into one copy, not copied block by block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.clock import Loop
from harness.configuration.checks import at_least
from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.errors import RunError
from harness.placement import Elastic
from harness.request import Batch, Request
from systems.serving.iteration import Limits
from systems.serving.replica import Replica

PREEMPTION = ("recompute", "kv_swap", "parameter_swap")


@dataclass(kw_only=True, slots=True)
class SwapConfig:
    """Raises ValueError if a value is below 1."""

    requests: int | None  # swapped out at once, per instance; None: as many as `bytes` hold
    # Per instance. kv_swap: KV that is swapped out at once; parameter_swap: memory gained for KV.
    bytes: int
    host_bytes: int  # of the node's memory, per instance

    def __post_init__(self) -> None:
        at_least(self, 1, "system.swap", "requests", "bytes", "host_bytes")


def swapping(preemption: str, config: SwapConfig) -> dict[str, Any]:
    """The fields of `Placement` that this preemption sets, as {field: value}."""
    if preemption == "kv_swap":
        return {"elastic": Elastic()}
    return {"gained_bytes": config.bytes} if preemption == "parameter_swap" else {}


def lacking_blocks(running: Sequence[Request], held: Mapping[int, int], block_tokens: int) -> int:
    """How many KV blocks are missing for the next token of every request in `running`.

    held: {request id: blocks that it holds}.
    """
    return sum(
        max(0, -(-request.known_tokens // block_tokens) - held.get(request.request_id, 0))
        for request in running
    )


class SwapReplica(Replica):
    """One instance with its queues and its part of the host's memory.

    `serve` raises RunError if swapped KV has no room to return.
    """

    def __init__(
        self,
        instance: ElasticInstance,
        cluster: ElasticCluster,
        loop: Loop,
        limits: Limits,
        config: SwapConfig,
    ) -> None:
        super().__init__(instance, instance.kv, loop, limits)
        self._instance, self._cluster, self._config = instance, cluster, config
        self._store = cluster.dram_store(instance.memory.node, config.host_bytes, instance.layout)
        self._block_bytes = instance.page_bytes * len(instance.kv.all_groups) * instance.model.tp
        self._swapped: deque[Request] = deque()  # the first that went first

    async def form(self) -> Batch:
        await self._swap_in()
        await self._keep_going()
        admitted = await self._make_room()
        batch = self.schedule(admitted)
        self.waiting.extendleft(reversed(admitted))
        if not batch.requests and self._swapped and not self.running:
            raise RunError(f"{self.name}: KV that was swapped out has no room to return")
        return batch

    def may_stop(self) -> bool:
        return not self.waiting and not self._swapped

    async def _swap_in(self) -> None:
        """Brings swapped requests back, in order, while there are seats and blocks. One block must
        stay free for each running request."""
        kv = self.kv
        while self._swapped and len(self.running) < self.limits.max_num_seqs:
            request = self._swapped[0]
            wanted = self._store.kv.held[request.request_id] + len(self.running) + 1
            if wanted > kv.free_blocks and self.running:
                return
            await self._move(request, out=False)
            self._swapped.popleft()
            self.running.append(request)
            self.running.sort(key=lambda r: (r.arrival_s, r.request_id))

    async def _keep_going(self) -> None:
        """Swaps the newest requests out until all others have blocks for their next token. If no
        more requests may be out, the iteration preempts instead, and their KV is computed again."""
        kv = self.kv
        while len(self.running) > 1:
            lacking = lacking_blocks(self.running, kv.held, kv.block_tokens)
            if lacking <= kv.free_blocks or not self._may_go(self.running[-1]):
                return
            await self._swap_out()

    async def _make_room(self) -> deque[Request]:
        """The waiting requests that may be admitted: all of them, in order, if the first one fits
        and no request is out, or `bytes` is the limit. If the first one does not fit, it alone, if
        swapping out the newest requests makes room for it."""
        if not self.waiting:
            return self._take(0)
        kv = self.kv
        first = kv.blocks_for(self.waiting[0].known_tokens)
        if first <= kv.free_blocks or not self.running:
            in_order = self._swapped and self._config.requests is not None
            return self._take(0 if in_order else len(self.waiting))
        victims = self._victims(first - kv.free_blocks)
        for _ in range(victims):
            await self._swap_out()
        return self._take(1 if victims else 0)

    def _victims(self, blocks: int) -> int:
        """How many of the newest requests hold as many blocks together; 0: not all may go."""
        freed = 0
        for count, request in enumerate(reversed(self.running)):
            if not self._may_go(request, self.running[len(self.running) - count :]):
                return 0
            freed += self.kv.held[request.request_id]
            if freed >= blocks:
                return count + 1
        return 0

    def _take(self, count: int) -> deque[Request]:
        return deque(self.waiting.popleft() for _ in range(count))

    def _may_go(self, request: Request, going: Sequence[Request] = ()) -> bool:
        """Whether `request` may be swapped out beside those that are out and those `going`. A
        prompt in its prefill may not: computing it again is cheaper."""
        if not request.decoding:
            return False
        if self._config.requests is not None:
            return len(self._swapped) + len(going) < self._config.requests
        blocks = sum(self._store.kv.held[each.request_id] for each in self._swapped)
        blocks += sum(self.kv.held[each.request_id] for each in (request, *going))
        return blocks * self._block_bytes <= self._config.bytes

    async def _swap_out(self) -> None:
        request = self.running.pop()
        await self._move(request, out=True)
        self._swapped.append(request)

    async def _move(self, request: Request, *, out: bool) -> None:
        device, store, layers = self._instance, self._store, range(self._instance.model.num_layers)
        source, target = (device, store) if out else (store, device)
        purpose = "swap out" if out else "swap in"
        if not await self._cluster.move_kv([request], layers, source, target, Sending(purpose)):
            raise RunError(f"{self.name}: no room to {purpose} request {request.request_id}")
