"""Instances that run a model's layers one after the other: pipeline stages, ZigZag's split point,
and attention where the KV is.

Any number of batches fly at once (micro-batches), each through every stage, first come first
served at each instance. What a stage computes with KV that another instance still holds, that
instance attends to: q, k and v go there and the result comes back (KunServe §4.2's remote
attention). The bookkeeping is written once; an engine supplies the `Line` that runs the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from harness.clock import Event, Loop
from harness.device.base import BaseInstance
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Flight, KvDirectory
from harness.elastic.page_pool import Groups
from harness.elastic.staged_kv import StagedKv
from harness.errors import RunError, UsageError
from harness.model_spec import ModelSpec
from harness.records.record import Recorder
from harness.request import Batch, Request

Stage = tuple[ElasticInstance, range]


@dataclass(slots=True, eq=False)
class FlightPlan:
    """What flies: `batch` for `steps` iterations over `stages`. `remote`: by stage, whose KV of
    which page groups lies on which other instance."""

    batch: Batch
    steps: int
    stages: Sequence[Stage]
    remote: list[dict[ElasticInstance, dict[int, Groups]]]


class PipelineExecutor(Protocol):
    async def fly(self, plan: FlightPlan, until: float, stop: Event | None, halt: Event) -> int:
        """Runs the stages, stamps each iteration's tokens and moves the requests' counters;
        iterations done. It ends as `Instance.execute` does, or at the boundary after `halt`."""
        ...


class RemoteAttention(NamedTuple):
    """Bytes that the remote attention of one token in one layer puts on the links (KunServe
    §4.2)."""

    there: int  # queries, keys and values; the paper's 672 KB for the 48 layers of a 14B model
    back: int  # the output, which the paper does not count


def remote_attention_bytes(model: ModelSpec) -> RemoteAttention:
    head = model.head_dim * model.dtype_bytes
    return RemoteAttention(
        there=(model.num_heads + 2 * model.num_kv_heads) * head, back=model.num_heads * head
    )


class Pipeline(BaseInstance):
    """An `Instance` of several: `execute` takes any number of batches at once, each request in one
    at a time. Layers that a stage is loading are waited for, each when its turn comes."""

    def __init__(
        self, stages: Sequence[Stage], line: PipelineExecutor, directory: KvDirectory, loop: Loop,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        homes = [(instance, instance.layout.groups(layers)) for instance, layers in stages]
        first = stages[0][0]
        kv = StagedKv(together(homes), directory, first.kv.block_tokens)
        name = "+".join(instance.name for instance, _ in stages)
        super().__init__(name, first.model, kv, loop, recorder)
        self.stages = tuple(stages)
        self._line, self._directory = line, directory

    def adopt(self, requests: Sequence[Request], holder: ElasticInstance) -> None:
        """Requests that ran on `holder` alone run here from now on; their KV is where it is."""
        for request in requests:
            groups = holder.kv.groups[request.request_id]
            self._directory.put(request, [(holder, groups)])

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        for instance, _ in self.stages:
            instance.check_alive()
        flight = await self._directory.launch(batch.requests)
        over: list[ElasticInstance] = []
        grown: list[tuple[Request, int]] = []
        try:
            over = self._over(batch)
            for instance in over:
                instance.check_alive()  # one may have died while the batch's KV was moved
                instance.join(flight)
            self._begin(batch, max_steps)
            self._running = False  # others may fly beside it
            self._check_layers()
            steps = 1
            if not batch.chunks:
                at_once = stop is not None and stop.is_set
                steps, grown, _ = self._reserve(batch.decodes, 1 if at_once else max_steps)
            plan = FlightPlan(batch, steps, self.stages, self._remote(batch.requests))
            return await self._line.fly(plan, until, stop, flight.halt)
        finally:
            self._land(flight, over, grown)

    def _land(
        self, flight: Flight, over: Sequence[ElasticInstance], grown: list[tuple[Request, int]]
    ) -> None:
        for instance in over:
            instance.leave(flight)
        self._directory.land(flight)
        self._return_unused([(r, held) for r, held in grown if self._directory.where(r)])
        for request in flight.requests:
            if request.finished:
                self.kv.release(request)
                if not request.failed:
                    self._recorder.completed(request)

    def settle(self) -> float:
        """Counters are those of the last iteration that has come out of the last stage."""
        return self._loop.now

    def evict(self, request: Request) -> None:
        self._directory.check_settled(request)
        super().evict(request)

    def _check_layers(self) -> None:
        for instance, layers in self.stages:
            if missing := instance.not_to_come(layers):
                raise RunError(
                    f"{instance.name}: a batch needs layers that are not here: {missing}"
                )

    def _over(self, batch: Batch) -> list[ElasticInstance]:
        """Every instance that the batch needs: stages, and holders of its KV."""
        found = {id(instance): instance for instance, _ in self.stages}
        for request in batch.requests:
            for holder, _ in self._directory.where(request):
                if isinstance(holder, ElasticInstance):
                    found.setdefault(id(holder), holder)
                else:
                    raise RunError(f"KV of request {request.request_id} is in {holder.name}")
        return list(found.values())

    def _remote(
        self, requests: Sequence[Request]
    ) -> list[dict[ElasticInstance, dict[int, Groups]]]:
        remote: list[dict[ElasticInstance, dict[int, Groups]]] = []
        for instance, layers in self.stages:
            mine = set(instance.layout.groups(layers))
            elsewhere: dict[ElasticInstance, dict[int, Groups]] = {}
            for request in requests:
                for holder, groups in self._directory.where(request):
                    here = tuple(g for g in groups if g in mine)
                    if holder is not instance and here:
                        assert isinstance(holder, ElasticInstance)
                        elsewhere.setdefault(holder, {})[request.request_id] = here
            remote.append(elsewhere)
        return remote


def checked(stages: Sequence[Stage]) -> None:
    """UsageError for stages that are no route: a gap, an overlap, another model."""
    if not stages:
        raise UsageError("a pipeline needs a stage at least")
    model = stages[0][0].model
    expected = 0
    if len({id(instance) for instance, _ in stages}) < len(stages):
        raise UsageError("an instance can be one stage of a pipeline only")
    for instance, layers in stages:
        if instance.model.name != model.name:
            raise UsageError(f"{instance.name} has {instance.model.name}, not {model.name}")
        if layers.start != expected or layers.stop <= layers.start:
            raise UsageError(
                f"stages of model {model.name} must hold layers 0 to {model.num_layers - 1} in "
                f"order, but {instance.name} has [{layers.start}, {layers.stop}) after {expected}"
            )
        expected = layers.stop
    if expected != model.num_layers:
        raise UsageError(
            f"stages end at layer {expected}, but model {model.name} has {model.num_layers}"
        )


def together(
    homes: Sequence[tuple[ElasticInstance, Groups]],
) -> list[tuple[ElasticInstance, Groups]]:
    """Each instance once, with the page groups of all its stages."""
    found: dict[int, tuple[ElasticInstance, Groups]] = {}
    for instance, groups in homes:
        before = found.get(id(instance), (instance, ()))[1]
        found[id(instance)] = instance, tuple(sorted({*before, *groups}))
    return list(found.values())
