"""A simulated instance: the device contract of `harness.cluster.Instance` over a cost model.

Decodes alone are one macro-step in closed form: its cost does not depend on how many tokens it
generates. Knows nothing of policies; keeps the same block pool as the real engine.
"""

from __future__ import annotations

from math import inf

from harness.clock import Event, Loop
from harness.cost.model import CostModel, steps_time_s, steps_to_reach
from harness.device.block_pool import BlockPool
from harness.model_spec import ModelSpec
from harness.record import Recorder, Segment
from harness.request import Batch, Request


class SimInstance:
    def __init__(
        self,
        name: str,
        model: ModelSpec,
        kv: BlockPool,
        cost: CostModel,
        loop: Loop,
        recorder: Recorder,
        *,
        prefill_cost: CostModel | None = None,  # of iterations with prompts, if not `cost`
    ) -> None:
        self.name = name
        self.model = model
        self.kv = kv
        self._cost = cost
        self._prefill_cost = prefill_cost or cost
        self._loop = loop
        self._recorder = recorder
        self._loaded = set(range(model.num_layers))

    async def execute(self, batch: Batch, *, until: float = inf, stop: Event | None = None) -> int:
        assert batch.chunks or batch.decodes, "an empty batch takes no time"
        missing = self.model.num_layers - len(self._loaded)
        assert not missing, f"{self.name}: {missing} layers are not loaded"
        if batch.chunks:
            return await self._mixed_iteration(batch)
        return await self._decode_macro_step(batch.decodes, until, stop)

    async def _mixed_iteration(self, batch: Batch) -> int:
        start_s = self._loop.now
        chunks = [(request.computed_tokens, n) for request, n in batch.chunks]
        context = sum(request.computed_tokens + 1 for request in batch.decodes)
        step_s = self._prefill_cost.mixed_step(chunks, len(batch.decodes), context)
        step_s += self._cost.turnaround_s
        await self._loop.sleep_until(start_s + step_s)
        sampled = list(batch.decodes)
        for request, n in batch.chunks:
            request.computed_tokens += n
            if request.computed_tokens == request.known_tokens:
                sampled.append(request)
                request.generated_tokens += 1
        for request in batch.decodes:
            request.computed_tokens += 1
            request.generated_tokens += 1
        if sampled:
            self._stamp(sampled, Segment(start_s, 1, step_s, 0.0))
            self._end_finished(sampled)
        return 1

    async def _decode_macro_step(
        self, decodes: list[Request], until: float, stop: Event | None
    ) -> int:
        start_s = self._loop.now + self._cost.turnaround_s  # of the first step
        context = sum([request.computed_tokens for request in decodes]) + len(decodes)
        step_s, growth_s = self._cost.decode_step(len(decodes), context)
        until_one_ends = min([r.output_tokens - r.generated_tokens for r in decodes])
        steps = self.kv.growth_steps(decodes, until_one_ends)
        if until < inf:
            steps = min(steps, steps_to_reach(until - start_s, step_s, growth_s))
        end_s = start_s + steps_time_s(steps, step_s, growth_s)
        if stop is None:
            await self._loop.sleep_until(end_s)
        elif await self._loop.wait(stop, until=end_s):
            elapsed_s = self._loop.now - start_s
            steps = min(steps, steps_to_reach(elapsed_s, step_s, growth_s))
            await self._loop.sleep_until(start_s + steps_time_s(steps, step_s, growth_s))
        for request in decodes:
            request.computed_tokens += steps
            request.generated_tokens += steps
        grown = self.kv.grow_to_computed(decodes)
        assert grown, f"{self.name}: a decode ran into a full pool"
        self._stamp(decodes, Segment(start_s, steps, step_s, growth_s))
        if steps == until_one_ends:
            self._end_finished(decodes)
        return steps

    def _stamp(self, requests: list[Request], segment: Segment) -> None:
        segment.start_s += self._cost.path_s
        self._recorder.segment(requests, segment, self.name)

    def _end_finished(self, requests: list[Request]) -> None:
        for request in requests:
            if request.generated_tokens >= request.output_tokens:
                self.kv.release(request)
                self._recorder.completed(request)

    def evict(self, request: Request) -> None:
        self.kv.release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    async def load(self, layers: range) -> None:
        start_s = self._loop.now
        for layer in layers:
            if layer not in self._loaded:
                await self._loop.sleep(self._cost.layer_load_s)
                self._loaded.add(layer)
        self._recorder.event("load", self.name, start_s, self._loop.now, layers=list(layers))

    async def drop(self, layers: range) -> None:
        self._loaded.difference_update(layers)
        now = self._loop.now
        self._recorder.event("drop", self.name, now, now, layers=list(layers))
