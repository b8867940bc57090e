"""Instances that run a model's layers one after the other: pipeline stages, ZigZag's split point,
and attention where the KV is.

Any number of batches run at once (micro-batches), each through every stage, first come first
served at each instance. What a stage computes with KV that another instance still holds, that
instance attends to: q, k and v go there and the result comes back (KunServe §4.2's remote
attention). The bookkeeping is written once; an engine supplies the `PipelineExecutor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from harness.clock import Event
from harness.device.base import BaseInstance, Grown
from harness.elastic.instance import ElasticInstance
from harness.elastic.page_pool import Groups
from harness.elastic.shared import Shared
from harness.elastic.staged_kv import StagedKv
from harness.errors import RunError, UsageError
from harness.model_spec import ModelSpec
from harness.request import Batch, Request

Stage = tuple[ElasticInstance, range]
Remote = dict[ElasticInstance, dict[int, Groups]]  # holder -> request_id -> its page groups there


@dataclass(slots=True, eq=False)
class StagedBatch:
    """`batch` runs for `steps` iterations over `stages`. `remote`: by stage, whose KV of which page
    groups lies on which other instance. `instances`: stages, and those that hold KV for them."""

    batch: Batch
    steps: int
    stages: Sequence[Stage]
    remote: Sequence[Remote]
    instances: Sequence[ElasticInstance]


class PipelineExecutor(Protocol):
    async def run(
        self, staged: StagedBatch, until: float, stop: Event | None, interrupt: Event
    ) -> int:
        """Runs the stages, stamps each iteration's tokens and moves the requests' counters;
        iterations done. It ends as `Instance.execute` does, or at the boundary after `interrupt`.
        """


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

    def __init__(self, stages: Sequence[Stage], executor: PipelineExecutor, shared: Shared) -> None:
        homes = [(instance, instance.layout.groups(layers)) for instance, layers in stages]
        kv = StagedKv(homes, shared.directory, stages[0][0].kv.block_tokens)
        name = "+".join(instance.name for instance, _ in stages)
        super().__init__(name, stages[0][0].model, kv, shared.loop, shared.recorder)
        self.stages = tuple(stages)
        self._executor, self._directory, self._homes = executor, shared.directory, kv.homes

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
        requests = batch.requests
        await self._directory.opened(requests)
        running = self._directory.begin(requests)
        needed: list[ElasticInstance] = []
        grown: Grown = []
        try:
            strays = self._strays(requests)
            needed = self._needed(strays)
            for instance in needed:
                instance.check_alive()  # one may have died while the batch's KV was moved
                instance.join(running)
            self._begin(batch, max_steps)
            self._running = False  # others may run beside it
            for instance, layers in self.stages:
                instance.check_layers(layers)
            steps, grown = self._steps(batch, max_steps, stop)
            remote = self._remote(strays)
            staged = StagedBatch(batch, steps, self.stages, remote, needed)
            start_s = self._loop.now
            done = await self._executor.run(staged, until, stop, running.interrupt)
            if away := {number for each in remote for ids in each.values() for number in ids}:
                self._recorder.event(
                    "remote_attention", self.name, start_s, self._loop.now, steps=done,
                    requests=len(away),
                )  # fmt: skip
            return done
        finally:
            for instance in needed:
                instance.leave(running)
            self._directory.end(running)
            held = [(r, before) for r, before in grown if self._directory.where(r)]
            self._end(requests, held)

    def settle(self) -> float:
        """Counters are those of the last iteration that has come out of the last stage."""
        return self._loop.now

    def evict(self, request: Request) -> None:
        self._directory.check_evictable(request)
        super().evict(request)

    def _strays(self, requests: Sequence[Request]) -> list[Request]:
        """Those of which KV is outside of its home. Who has come home since the last time has the
        very tuple from now on, as those have who never were elsewhere."""
        wheres, homes = self._directory.wheres, self._homes
        strays = [r for r in requests if wheres.get(r.request_id) is not homes]
        for request in strays:
            if set(self._directory.where(request)) == set(homes):
                wheres[request.request_id] = homes
        return [r for r in strays if wheres.get(r.request_id) is not homes]

    def _needed(self, strays: Sequence[Request]) -> list[ElasticInstance]:
        """Every instance that a batch needs: stages, and holders of the KV of its `strays`."""
        found = {instance: None for instance, _ in self.stages}
        for request in strays:
            for holder, _ in self._directory.where(request):
                if not isinstance(holder, ElasticInstance):
                    raise RunError(f"KV of request {request.request_id} is in {holder.name}")
                found[holder] = None
        return list(found)

    def _remote(self, strays: Sequence[Request]) -> list[Remote]:
        remote: list[Remote] = []
        for instance, layers in self.stages:
            mine = set(instance.layout.groups(layers))
            elsewhere: Remote = {}
            for request in strays:
                for holder, groups in self._directory.where(request):
                    if holder is not instance and (here := tuple([g for g in groups if g in mine])):
                        assert isinstance(holder, ElasticInstance)
                        elsewhere.setdefault(holder, {})[request.request_id] = here
            remote.append(elsewhere)
        return remote


def check_stages(stages: Sequence[Stage]) -> None:
    """UsageError for stages that are no route: a gap, an overlap, another model."""
    if not stages:
        raise UsageError("a pipeline needs a stage at least")
    model = stages[0][0].model
    if len({id(instance) for instance, _ in stages}) < len(stages):
        raise UsageError("an instance can be one stage of a pipeline only")
    for instance, _ in stages:
        if instance.model.name != model.name:
            raise UsageError(f"{instance.name} has {instance.model.name}, not {model.name}")
    held = [layer for _, layers in stages for layer in layers]
    if held != [*range(model.num_layers)] or not all(layers for _, layers in stages):
        told = ", ".join(f"[{layers.start}, {layers.stop})" for _, layers in stages)
        raise UsageError(
            f"stages of model {model.name} must hold layers 0 to {model.num_layers - 1} in order, "
            f"but hold {told}"
        )
