"""A simulated instance: the device contract of `harness.device.instance.Instance` over a cost
model.

Decodes alone are one macro-step in closed form: its cost does not depend on how many tokens it
generates. Knows nothing of policies; checks, counts and reserves as the real engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from harness.clock import Event, Loop
from harness.cost.model import CostModel, steps_done, steps_time_s, steps_to_reach
from harness.device.base import BaseInstance
from harness.device.block_pool import BlockPool
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from harness.record import Recorder, Segment
from harness.request import Batch, Request
from harness.sim.compute import Compute


class _Decoding:
    """Decode steps under way, `applied` of which the requests' counters have already."""

    __slots__ = ("applied", "ends", "requests", "segment")

    def __init__(self, requests: Sequence[Request], segment: Segment, ends: bool) -> None:
        self.requests = requests
        self.segment = segment  # all the steps that were reserved
        self.ends = ends  # whether the last of them ends a request
        self.applied = 0

    def apply(self, steps: int) -> None:
        """Has the counters say what they are after `steps` steps in all."""
        more, self.applied = steps - self.applied, steps
        for request in self.requests:
            request.computed_tokens += more
            request.generated_tokens += more


async def nobody() -> None:
    """Dies: a device that is not under a cluster's fault injection."""


class SimInstance(BaseInstance):
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
        super().__init__(name, model, kv, loop, recorder)
        self._cost = cost
        self._prefill_cost = prefill_cost or cost
        self._decoding: _Decoding | None = None
        self._last_step_s = 0.0
        self.died = nobody  # raises InstanceLost, once that is known, where the device has died
        self.compute = Compute(loop)

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
        halt: Event | None = None,
    ) -> int:
        self._begin(batch, max_steps)
        compute = self.compute
        if compute.busy or compute.booked_until_s > self._loop.now:
            await compute.enter()
        compute.busy, compute.halt = True, halt
        try:
            if batch.chunks:
                steps = await self._mixed_iteration(batch, halt)
            else:
                steps = await self._decode_macro_step(batch.decodes, max_steps, until, stop, halt)
        finally:
            self._running = False
            compute.leave()
        self._last_step_s = self._loop.now
        return steps

    def settle(self) -> float:
        decoding = self._decoding
        if decoding is None:
            return self._last_step_s
        segment = decoding.segment
        elapsed_s = self._loop.now - segment.start_s
        steps = min(
            steps_done(elapsed_s, segment.step_s, segment.growth_s),
            segment.num_tokens - decoding.ends,
        )
        if steps > decoding.applied:
            decoding.apply(steps)
        if not steps:
            return self._last_step_s
        return segment.start_s + steps_time_s(steps, segment.step_s, segment.growth_s)

    async def _mixed_iteration(self, batch: Batch, halt: Event | None) -> int:
        start_s = self._loop.now
        chunks = [(request.computed_tokens, n) for request, n in batch.chunks]
        context = sum(request.computed_tokens + 1 for request in batch.decodes)
        step_s = self._prefill_cost.mixed_step(chunks, len(batch.decodes), context)
        step_s += self._cost.turnaround_s
        if halt is None:
            await self._loop.sleep_until(start_s + step_s)
        elif await self._loop.wait(halt, until=start_s + step_s):
            await self.died()
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
        self,
        decodes: list[Request],
        max_steps: int | None,
        until: float,
        stop: Event | None,
        halt: Event | None,
    ) -> int:
        start_s = self._loop.now + self._cost.turnaround_s  # of the first step
        context = sum([request.computed_tokens for request in decodes]) + len(decodes)
        step_s, growth_s = self._cost.decode_step(len(decodes), context)
        by_then = inf if until == inf else steps_to_reach(until - start_s, step_s, growth_s)
        steps, grown, ends = self._reserve(decodes, max_steps, by_then)
        segment = Segment(start_s, steps, step_s, growth_s)
        self._decoding = decoding = _Decoding(decodes, segment, ends)
        end_s = start_s + steps_time_s(steps, step_s, growth_s)
        stops = [event for event in (stop, halt) if event is not None]
        if not stops:
            await self._loop.sleep_until(end_s)
        elif await self._loop.wait(*stops, until=end_s):
            if halt is not None and halt.is_set:
                await self._die_in_mid_run(decoding)
            elapsed_s = self._loop.now - start_s
            done = min(steps, steps_to_reach(elapsed_s, step_s, growth_s))
            if done < steps:
                steps, ends = done, False
                segment.num_tokens, decoding.ends = done, False
            await self._loop.sleep_until(start_s + steps_time_s(steps, step_s, growth_s))
        self._decoding = None
        decoding.apply(steps)
        if grown:
            self._return_unused(grown)
        self._stamp(decodes, segment)
        if ends:
            self._end_finished(decodes)
        return steps

    async def _die_in_mid_run(self, decoding: _Decoding) -> None:
        """Where the device has died: the steps that were over count, and InstanceLost."""
        self.settle()
        try:
            await self.died()
        except InstanceLost:
            self._decoding = None
            if decoding.applied:
                decoding.segment.num_tokens = decoding.applied
                self._stamp(list(decoding.requests), decoding.segment)
            raise

    def _stamp(self, requests: list[Request], segment: Segment) -> None:
        segment.start_s += self._cost.path_s
        self._recorder.segment(requests, segment, self.name)

    def _end_finished(self, requests: list[Request]) -> None:
        for request in requests:
            if request.generated_tokens >= request.output_tokens:
                self.kv.release(request)
                self._recorder.completed(request)

    async def load(self, layers: range) -> None:
        start_s = self._loop.now
        for layer in layers:
            if layer in self._missing:
                await self._loop.sleep(self._cost.layer_load_s)
                self._missing.discard(layer)
        self._recorder.event("load", self.name, start_s, self._loop.now, layers=list(layers))

    async def drop(self, layers: range) -> None:
        self._missing.update(layers)
        now = self._loop.now
        self._recorder.event("drop", self.name, now, now, layers=list(layers))
