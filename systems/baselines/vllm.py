"""vLLM: replicas of a model behind a dispatcher, each scheduled as vLLM does it.

The iteration is `systems.serving.iteration`, the replica's loop `systems.serving.replica`. With
engine=vllm the servers schedule by themselves, and only the dispatch is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.device.block_hashes import block_hashes
from harness.device.instance import Instance
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, dedicated
from harness.request import Request
from systems.baselines.config import VllmConfig
from systems.baselines.routers import least_loaded, prefix_aware
from systems.baselines.swap import SwapReplica, swapping
from systems.serving.iteration import Limits
from systems.serving.replica import Order, Replica

# Decode steps of one `execute` with parameter swap: a step is as long as its copies at first, and
# grows with the context only later.
SHORT_STEPS = 16


class Backend(Protocol):
    """What a request is dispatched to: a replica scheduled by us, or a server by itself."""

    @property
    def name(self) -> str: ...

    @property
    def lost(self) -> bool: ...

    def submit(self, request: Request) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class VllmSystem:
    """Replicas behind a dispatcher: `system.router` chooses among the instances that serve a
    request's model.

    One that dies fails the requests it has; the dispatcher then passes it over, as a proxy does
    with a server that refuses connections. That it died while idle, the next request finds out.

    order: as in `Replica`. Raises ValueError if a model has no instance, or if the engine or the
    order does not fit `system.preemption` or `system.router`.
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
        self._loop, self._drop = loop, cluster.drop
        instances, self._replicas = self._serving(config, limits, cluster, order)
        self._routed: dict[str, list[Replica]] = {
            name: [r for r, i in zip(self._replicas, instances, strict=True) if i.model is m]
            for name, m in cluster.models.items()
        }
        self._backends: dict[str, Sequence[Backend]] = {
            name: replicas or [each for each in cluster.endpoints if name in each.models]
            for name, replicas in self._routed.items()
        }
        for name, backends in self._backends.items():
            if not backends:
                raise ValueError(
                    f"system vllm finds no instance for model {name!r}: choose an engine with "
                    "instances (torch, sim, vllm, openai)"
                )
        self._next = dict.fromkeys(self._backends, 0)
        self._router, self._prefix = config.router, config.prefix
        if config.router != "round_robin" and not self._replicas:
            raise ValueError(
                f"system.router={config.router} looks at instances that this harness runs: choose "
                "engine=torch or engine=sim"
            )

    def _serving(
        self, config: VllmConfig, limits: Limits, cluster: Cluster, order: Order | None
    ) -> tuple[Sequence[Instance | ElasticInstance], Sequence[Replica]]:
        if config.preemption != "recompute" and not (cluster.instances or cluster.elastic):
            raise ValueError(
                f"system.preemption={config.preemption} needs instances that this harness runs: "
                "choose engine=sim"
            )
        loop, elastic = self._loop, cluster.elastic
        if elastic is None:
            few = SHORT_STEPS if config.preemption == "parameter_swap" else None
            return cluster.instances, [
                Replica(each, each.kv, loop, limits, order=order, max_steps=few)
                for each in cluster.instances
            ]
        if order is not None:
            raise ValueError("system.preemption=kv_swap serves by arrival; it cannot take an order")
        swap = config.swap
        assert swap is not None, "conf/system/vllm.yaml has it"
        return elastic.instances, [
            SwapReplica(each, elastic, loop, limits, swap) for each in elastic.instances
        ]

    def submit(self, request: Request) -> None:
        backend = self._chosen(request)
        if backend is None:
            self._drop(request, f"every instance of {request.model} is lost")
        else:
            backend.submit(request)

    def _chosen(self, request: Request) -> Backend | None:
        """The choice of `system.router` among those that are not lost; None: all are."""
        if self._router != "round_robin":
            replicas = [each for each in self._routed[request.model] if not each.lost]
            return replicas[self._routed_to(request, replicas)] if replicas else None
        backends = self._backends[request.model]
        for _ in backends:
            backend = backends[self._next[request.model] % len(backends)]
            self._next[request.model] += 1
            if not backend.lost:
                return backend
        return None

    def _routed_to(self, request: Request, replicas: Sequence[Replica]) -> int:
        waiting = [len(each.waiting) for each in replicas]
        running = [len(each.running) for each in replicas]
        if self._router == "least_loaded":
            return least_loaded(waiting, running)
        assert self._prefix is not None, "conf/system/vllm.yaml has it"
        size = replicas[0].kv.block_tokens
        hashes = block_hashes(request, size)
        cached = [size * each.kv.num_known(hashes) for each in replicas]
        unfinished = [w + r for w, r in zip(waiting, running, strict=True)]
        return prefix_aware(request.prompt_tokens, cached, unfinished, self._prefix)

    async def serve(self) -> None:
        for replica in self._replicas:
            self._loop.spawn(self._serve(replica), name=replica.name)
        await self._loop.wait(Event(self._loop))

    async def _serve(self, replica: Replica) -> None:
        try:
            await replica.serve()
        except InstanceLost as error:
            replica.lost = True
            for request in [*replica.running, *replica.waiting]:
                if not (request.finished or request.failed):
                    self._drop(request, str(error))
