"""vLLM's scheduler as a policy: FCFS continuous batching over paged KV, chunked prefill, and
preemption by recompute.

The rules are those of vLLM's V1 scheduler (v0.32, vllm/v1/core/sched/scheduler.py). Each iteration
has one token budget. Running requests come first, in order. Waiting requests follow while budget,
`max_num_seqs` and free blocks last. With prefix caching the prefill of a waiting request begins
after the blocks that are already in memory (`harness.device.caching_pool`).

With engine=vllm the servers schedule by themselves, and only the round-robin dispatch is used.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.device.block_pool import BlockPool
from harness.device.elastic import ElasticInstance
from harness.device.instance import Instance
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, dedicated
from harness.request import Batch, Request
from systems.baselines.config import VllmConfig
from systems.baselines.swap import Schedule, SwapReplica, swapping

# Decode steps of one `execute` with parameter swap: a step is as long as its copies at first, and
# grows with the context only later.
SHORT_STEPS = 16


@dataclass(kw_only=True, slots=True)
class Limits:
    """What an iteration may have. Raises ValueError if one of the first two is below 1."""

    max_num_seqs: int  # requests running at once
    max_num_batched_tokens: int  # tokens of one iteration
    enable_chunked_prefill: bool
    scheduler_reserve_full_isl: bool  # admit a prompt if all of it fits, not just its first chunk
    enable_prefix_caching: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"system.{name}={getattr(self, name)} must be at least 1")


def schedule_iteration(
    running: list[Request],
    waiting: deque[Request],
    kv: BlockPool,
    limits: Limits,
    evict: Callable[[Request], None],
) -> Batch:
    """The next iteration's batch; empty if nothing can run.

    Grows `kv` for everything in the batch and moves requests between `waiting` and `running`.
    If a running request needs a block and no block is free, the last request of `running` is
    preempted: `evict` frees its blocks, and it waits at the head of the queue to be recomputed.
    """
    batch = Batch()
    budget, block_tokens = limits.max_num_batched_tokens, kv.block_tokens
    num_preempted = index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        # `known_tokens` and `decoding`, written out: simulations spend their time here.
        lacking = request.prompt_tokens + request.generated_tokens - request.computed_tokens
        tokens = lacking if lacking < budget else budget
        # One more token needs no block where the last one held has room, as most have.
        in_last_block = request.computed_tokens % block_tokens if tokens == 1 else 0
        while not in_last_block and not kv.grow(request, request.computed_tokens + tokens):
            victim = running.pop()
            evict(victim)
            waiting.appendleft(victim)
            num_preempted += 1
            if victim is request:
                break
        else:
            if lacking == 1 and request.generated_tokens:
                batch.decodes.append(request)
            else:
                batch.chunks.append((request, tokens))
                if limits.enable_prefix_caching:
                    kv.remember(request, request.computed_tokens + tokens)
            budget -= tokens
            index += 1
    if not num_preempted:
        _admit(running, waiting, kv, limits, batch, budget)
    return batch


def _admit(
    running: list[Request],
    waiting: deque[Request],
    kv: BlockPool,
    limits: Limits,
    batch: Batch,
    budget: int,
) -> None:
    """Admits from the head of `waiting`; the first that does not fit stops it (FCFS)."""
    while waiting and budget > 0 and len(running) < limits.max_num_seqs:
        request = waiting[0]
        known = request.known_tokens
        prefix = kv.cached_prefix(request) if limits.enable_prefix_caching else None
        cached = prefix.num_blocks * kv.block_tokens if prefix is not None else 0
        tokens = known - cached
        if tokens > budget and not limits.enable_chunked_prefill:
            return
        if limits.scheduler_reserve_full_isl:
            more = kv.blocks_for(known)
            if prefix is not None:
                more += prefix.num_waiting - prefix.num_blocks
            if more > kv.free_blocks:
                return
        tokens = min(tokens, budget)
        if prefix is None:
            if not kv.grow(request, tokens):
                return
        elif kv.admit(request, cached + tokens, prefix):
            request.computed_tokens = cached
            if request.cached_tokens is None:
                request.cached_tokens = cached
        else:
            return
        running.append(waiting.popleft())
        batch.chunks.append((request, tokens))
        budget -= tokens


class Backend(Protocol):
    """What a request is dispatched to: a replica scheduled by us, or a server by itself."""

    @property
    def name(self) -> str: ...

    def submit(self, request: Request) -> None: ...


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


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmSystem:
    """Replicas behind a dispatcher: round robin over the instances that serve a request's model.

    order: as in `Replica`. Raises ValueError if a model has no instance, or if the engine or the
    order does not fit `system.preemption`.
    """

    Config: ClassVar = VllmConfig

    @staticmethod
    def place(
        config: VllmConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        placements = dedicated(models, hardware)
        if config.preemption == "recompute":
            return placements
        assert config.swap is not None, "conf/system/vllm.yaml has it"
        change = swapping(config.preemption, config.swap)
        return [replace(placement, **change) for placement in placements]

    def __init__(
        self, config: VllmConfig, *, loop: Loop, cluster: Cluster, order: Order | None = None
    ) -> None:
        limits = Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_chunked_prefill=config.enable_chunked_prefill,
            scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        self._loop = loop
        instances, self._replicas = self._serving(config, limits, cluster, order)
        self._backends: dict[str, Sequence[Backend]] = {
            name: [r for r, i in zip(self._replicas, instances, strict=True) if i.model is m]
            or [endpoint for endpoint in cluster.endpoints if name in endpoint.models]
            for name, m in cluster.models.items()
        }
        for name, backends in self._backends.items():
            if not backends:
                raise ValueError(
                    f"system vllm finds no instance for model {name!r}: choose an engine with "
                    "instances (torch, sim, vllm, openai)"
                )
        self._next = dict.fromkeys(self._backends, 0)

    def _serving(
        self, config: VllmConfig, limits: Limits, cluster: Cluster, order: Order | None
    ) -> tuple[Sequence[Instance | ElasticInstance], Sequence[Replica | SwapReplica]]:
        if config.preemption != "recompute" and not (cluster.instances or cluster.elastic):
            raise ValueError(
                f"system.preemption={config.preemption} needs instances that this harness runs: "
                "choose engine=sim"
            )
        if cluster.elastic is None:
            few = SHORT_STEPS if config.preemption == "parameter_swap" else None
            replicas = [
                Replica(instance, self._loop, limits, order, few) for instance in cluster.instances
            ]
            return cluster.instances, replicas
        assert config.swap is not None, "conf/system/vllm.yaml has it"
        if order is not None:
            raise ValueError("system.preemption=kv_swap serves by arrival; it cannot take an order")

        def schedule(instance: ElasticInstance) -> Schedule:
            return lambda running, waiting, evict: schedule_iteration(
                running, waiting, instance.kv, limits, evict
            )

        found = cluster.elastic.instances
        return found, [
            SwapReplica(
                instance, cluster.elastic, self._loop, schedule(instance), config.max_num_seqs,
                config.swap,
            )
            for instance in found
        ]  # fmt: skip

    def submit(self, request: Request) -> None:
        backends = self._backends[request.model]
        backends[self._next[request.model] % len(backends)].submit(request)
        self._next[request.model] += 1

    async def serve(self) -> None:
        for replica in self._replicas:
            self._loop.spawn(replica.serve(), name=replica.name)
        await self._loop.wait(Event(self._loop))
