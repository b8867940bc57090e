"""Layers on several instances in virtual time: pipeline stages, and runs of a few layers.

A stage's time is its share of the iteration's terms; what an iteration costs whatever its layers is
paid once, at the first stage unless told otherwise. Where a pipeline has its instances to itself,
stages are numbers: each has a time at which it is free, and an iteration is one event, its exit
from the last stage. Where pipelines cross, or a link is taken by a copy, each stage is an event, as
is each run of a layerwise batch. Where another instance holds KV, each layer is: q, k and v cross
the link, the holder attends at once and is slowed by it, the result crosses back (KunServe §4.2).
All activations go before the chunks of KV that wait for their link, and behind the one under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil
from typing import NamedTuple

from harness.clock import Event, Loop, Task
from harness.cost.model import CostModel
from harness.device.base import advance
from harness.device.location import Place
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Stage, StagedBatch, remote_attention_bytes
from harness.records.record import Recorder, Segment
from harness.request import Batch
from harness.sim.compute import Compute, through
from harness.sim.fabric import IN_TURN, SimFabric
from harness.sim.instance import SimInstance, context_tokens, terms
from harness.sim.network import Channel

URGENT = 100  # activations go before any copy of weights or KV
TOKEN_BYTES = 8


class SimPipeline:
    """`cost`: of so many layers, with a share of what an iteration costs whatever its layers. The
    first stage pays `first_constants` of it, and all stages the rest in equal parts."""

    def __init__(
        self, stages: Sequence[Stage], cost: Callable[[int, float], CostModel], fabric: SimFabric,
        loop: Loop, recorder: Recorder, first_constants: float,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._computes = [compute_of(instance) for instance, _ in stages]
        spread = (1 - first_constants) / len(stages)
        self._costs = [
            cost(len(layers), spread + (first_constants if position == 0 else 0.0))
            for position, (_, layers) in enumerate(stages)
        ]
        self._fabric, self._loop, self._recorder = fabric, loop, recorder
        self._name = "+".join(instance.name for instance, _ in stages)
        self._hop = cache(self._new_hop)
        self._wires = [0.0 for _ in stages]  # until when activations are on the hop after a stage
        self._activation_bytes = stages[0][0].model.activation_bytes_per_token

    async def run(
        self, staged: StagedBatch, until: float, stop: Event | None, interrupt: Event
    ) -> int:
        batch, done = staged.batch, 0
        chunks, num_decodes, context = terms(batch)
        turnaround_s = self._costs[0].turnaround_s
        while True:
            start_s = self._loop.now
            times_s = self._times_s(chunks, num_decodes, context)
            times_s[0] += turnaround_s
            await self._iteration(staged, interrupt, times_s)
            stamp(batch, start_s, self._name, self._loop, self._recorder)
            done, context, turnaround_s = done + 1, context + num_decodes, 0.0
            stopped = interrupt.is_set or (stop is not None and stop.is_set)
            if done == staged.steps or stopped or self._loop.now >= until:
                return done

    async def _iteration(
        self, staged: StagedBatch, interrupt: Event, times_s: Sequence[float]
    ) -> None:
        num_tokens = staged.batch.num_tokens
        if not any(staged.remote) and self._alone():
            exit_s = self._book(times_s, num_tokens)
            if await self._loop.wait(interrupt, until=exit_s):
                await self._check_alive(staged)
                await self._loop.sleep_until(exit_s)
        else:
            for position, compute in enumerate(self._computes):
                await compute.enter()
                await self._stage(staged, position, times_s[position])
                compute.leave()
                await self._check_alive(staged)
                await self._cross(position, num_tokens)
        await self._check_alive(staged)

    async def _stage(self, staged: StagedBatch, position: int, time_s: float) -> None:
        instance, layers = self._stages[position]
        arriving = instance.arriving(layers)
        if arriving is not None:
            gone = [one.gone for one in staged.instances]
            await through(self._loop, arriving._replace(gone=gone), time_s)
            time_s = 0.0
        if staged.remote[position]:
            await self._with_holders(staged, position, time_s)
        elif arriving is None:
            await self._computes[position].work(time_s)

    async def _with_holders(self, staged: StagedBatch, position: int, time_s: float) -> None:
        """A stage some of whose KV is elsewhere, in `time_s` and what holders take: in each layer
        they are asked first, then it attends to its own KV, and waits for them."""
        compute, (instance, layers) = self._computes[position], self._stages[position]
        chunks, _, context = terms(staged.batch)
        whole_s = min(time_s, self._costs[position].attention_s(chunks, context))
        lent = lent_attention(staged, position, self._costs[position])
        for layer in layers:
            asked = lent.get(layer // instance.layout.page_layers, {})
            own_s = whole_s / len(layers) - sum(each.time_s for each in asked.values())
            await compute.work((time_s - whole_s) / len(layers))
            tasks = [self._ask(position, holder, each) for holder, each in asked.items()]
            await compute.work(max(0.0, own_s))
            for task in tasks:
                await self._loop.wait(task.finished)

    def _ask(self, position: int, holder: ElasticInstance, lent: Lent) -> Task:
        """Has `holder` attend in one layer."""
        instance = self._stages[position][0]
        there, back = remote_attention_bytes(instance.model)
        here, away = instance.memory.place, holder.memory.place
        tokens = lent.tokens / instance.model.tp  # each device has its heads

        async def attended() -> None:
            await self._send(here, away, ceil(there * tokens))
            await compute_of(holder).attend(lent.time_s)
            await self._send(away, here, ceil(back * tokens))

        return self._loop.spawn(attended(), name=f"attention at {holder.name}")

    async def _send(self, source: Place, target: Place, num_bytes: int) -> None:
        await self._fabric.network.transfer(
            source, target, num_bytes, stream=IN_TURN, priority=URGENT
        )

    def _alone(self) -> bool:
        """Whether no other pipeline or batch has an instance of this one, no copy a link, and all
        layers are here."""
        return (
            all(compute.is_free_for(self) for compute in self._computes)
            and all(instance.arriving(layers) is None for instance, layers in self._stages)
            and not any(self._crossed(position) for position in range(len(self._stages) - 1))
        )

    def _book(self, times_s: Sequence[float], num_tokens: int) -> float:
        """When the batch leaves the last stage, and its token ids are back at the first."""
        at_s = self._loop.now
        for position, (compute, time_s) in enumerate(zip(self._computes, times_s, strict=True)):
            at_s = compute.book(at_s, time_s, self)
            at_s = self._arrival_s(position, num_tokens, at_s)
        return at_s

    def _arrival_s(self, position: int, num_tokens: int, at_s: float) -> float:
        """The arrival of what leaves the stage at `at_s`: a batch's activations follow those of the
        one before on their link, however few they are."""
        if len(self._stages) == 1:
            return at_s
        hop, num_bytes = self._hop(position).path, self._leaving_bytes(position, num_tokens)
        arrival_s = max(at_s, self._wires[position]) + hop.time_s(num_bytes)
        self._wires[position] = arrival_s - hop.latency_s
        return arrival_s

    def _leaving_bytes(self, position: int, num_tokens: int) -> int:
        """Activations, or token ids from the last stage to the first."""
        last = position == len(self._stages) - 1
        return (TOKEN_BYTES if last else self._activation_bytes) * num_tokens

    async def _cross(self, position: int, num_tokens: int) -> None:
        if self._stages[position][0] is self._stages[(position + 1) % len(self._stages)][0]:
            return
        if self._crossed(position):
            await self._send(*self._ends(position), self._leaving_bytes(position, num_tokens))
        else:
            arrival_s = self._arrival_s(position, num_tokens, self._loop.now)
            await self._loop.sleep_until(arrival_s)

    def _crossed(self, position: int) -> bool:
        """Whether others' messages are on the hop after a stage, or about to be."""
        hop = self._hop(position)
        return self._fabric.network.fluid.busy(hop.path.links) or hop.taken

    def _ends(self, position: int) -> tuple[Place, Place]:
        (source, _), (target, _) = (
            self._stages[position],
            self._stages[(position + 1) % len(self._stages)],
        )
        return source.memory.place, target.memory.place

    def _new_hop(self, position: int) -> Channel:
        return self._fabric.network.channel(*self._ends(position), IN_TURN)

    def _times_s(
        self, chunks: Sequence[tuple[int, int]], num_decodes: int, context: int
    ) -> list[float]:
        times_s = []
        for cost in self._costs:
            if chunks:
                step_s = cost.mixed_step(chunks, num_decodes, context)
            else:
                step_s = cost.decode_step(num_decodes, context)[0]
            times_s.append(step_s)
        return times_s

    async def _check_alive(self, staged: StagedBatch) -> None:
        """InstanceLost where a stage has died, or a holder that attends for one."""
        for instance in staged.instances:
            if self._fabric.is_lost(instance.name):
                await self._fabric.require(instance.name)


class Lent(NamedTuple):
    """What one holder is asked for in one layer: attention for so many tokens."""

    tokens: int
    time_s: float


def lent_attention(
    staged: StagedBatch, position: int, cost: CostModel
) -> dict[int, dict[ElasticInstance, Lent]]:
    """The attention that others compute, by page group and by holder. `cost`: of the stage."""
    batch, num_layers = staged.batch, len(staged.stages[position][1])
    asked: dict[int, dict[ElasticInstance, Lent]] = {}
    for holder, requests in staged.remote[position].items():
        for groups in dict.fromkeys(requests.values()):
            chunks = [
                (r.computed_tokens, n)
                for r, n in batch.chunks
                if requests.get(r.request_id) == groups
            ]
            decodes = [r for r in batch.decodes if requests.get(r.request_id) == groups]
            tokens = sum(n for _, n in chunks) + len(decodes)
            time_s = cost.attention_s(chunks, context_tokens(decodes)) / num_layers
            for group in groups:
                of_layer = asked.setdefault(group, {})
                more = of_layer.get(holder, Lent(0, 0.0))
                of_layer[holder] = Lent(more.tokens + tokens, more.time_s + time_s)
    return asked


def stamp(batch: Batch, start_s: float, name: str, loop: Loop, recorder: Recorder) -> None:
    """An iteration that began at `start_s` has come out of the last layer, at `name`: moves the
    requests' counters and stamps their tokens."""
    sampled = batch.decodes + advance(batch)
    if sampled:
        recorder.segment(sampled, Segment(start_s, 1, loop.now - start_s, 0.0), name)


def compute_of(instance: ElasticInstance) -> Compute:
    runner = instance.runner
    assert isinstance(runner, SimInstance), instance.name
    return runner.compute
