"""A simulated instance: the device contract of `harness.device.instance.Instance` over a cost
model.

Decodes alone are one macro-step in closed form: its cost does not depend on how many tokens it
generates. Knows nothing of policies; checks, counts and reserves as the real engine does.
"""

from __future__ import annotations

from collections.abc import Awaitable
from math import inf

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.cost.model import CostModel, steps_done, steps_time_s, steps_to_reach
from harness.device.base import BaseInstance
from harness.device.block_pool import BlockPool
from harness.elastic.arriving import Arriving
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from harness.records.record import Recorder, Segment
from harness.request import Batch, Request
from harness.sim.arriving import through
from harness.sim.compute import Compute


def context_tokens(decodes: list[Request]) -> int:
    """That the next step of `decodes` attends to."""
    tokens = len(decodes)
    for request in decodes:  # not a sum of a list: compiled, its integers would become objects
        tokens += request.computed_tokens
    return tokens


async def nobody() -> None:
    """Dies: a device that is not under a cluster's fault injection."""


@mypyc_attr(allow_interpreted_subclasses=True)
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
        # Decode steps under way: all that were reserved, of which the requests' counters have
        # `_applied`; `_ends`: whether the last of them ends a request.
        self._decodes: list[Request] = []
        self._segment: Segment | None = None
        self._applied, self._ends = 0, False
        self._last_step_s = 0.0
        self.died = nobody  # raises InstanceLost, once that is known, where the device has died
        self.compute = Compute(loop)

    def use(self, cost: CostModel) -> None:
        """Iterations that begin from now on take what `cost` says."""
        self._cost = self._prefill_cost = cost

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
        halt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        self._begin(batch, max_steps)
        compute = self.compute
        if compute.busy or compute.booked_until_s > self._loop.now:
            await compute.enter()
        compute.busy, compute.halt = True, halt
        try:
            if batch.chunks or arriving is not None:
                return await self._mixed_iteration(batch, halt, arriving)
            return await self._decode_macro_step(batch.decodes, max_steps, until, stop, halt)
        finally:
            self._running = False
            self._last_step_s = self._loop.now
            if compute.turns:
                compute.leave()
            else:
                compute.busy = False

    def settle(self) -> float:
        segment = self._segment
        if segment is None:
            return self._last_step_s
        elapsed_s = self._loop.now - segment.start_s
        steps = min(
            steps_done(elapsed_s, segment.step_s, segment.growth_s),
            segment.num_tokens - self._ends,
        )
        if not steps:
            return self._last_step_s
        self._apply(steps)
        return segment.start_s + steps_time_s(steps, segment.step_s, segment.growth_s)

    def _apply(self, steps: int) -> None:
        """Has the counters say what they are after `steps` steps in all."""
        more, self._applied = steps - self._applied, steps
        for request in self._decodes:
            request.computed_tokens += more
            request.generated_tokens += more

    async def _mixed_iteration(
        self, batch: Batch, halt: Event | None, arriving: Arriving | None
    ) -> int:
        start_s = self._loop.now
        chunks = [(request.computed_tokens, n) for request, n in batch.chunks]
        context = context_tokens(batch.decodes)
        if chunks:
            step_s = self._prefill_cost.mixed_step(chunks, len(batch.decodes), context)
        else:  # decodes that wait for layers
            step_s = self._cost.decode_step(len(batch.decodes), context)[0]
        step_s += self._cost.turnaround_s
        if arriving is not None:
            await through(self._loop, arriving, step_s)
            await self.died()
            step_s = self._loop.now - start_s
        elif halt is None:
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
        context = context_tokens(decodes)
        step_s, growth_s = self._cost.decode_step(len(decodes), context)
        by_then = inf if until == inf else steps_to_reach(until - start_s, step_s, growth_s)
        steps, grown, ends = self._reserve(decodes, max_steps, by_then)
        reserved = steps
        self._segment = segment = Segment(start_s, steps, step_s, growth_s)
        self._decodes, self._applied, self._ends = decodes, 0, ends
        end_s = start_s + steps_time_s(steps, step_s, growth_s)
        if await self._interrupted(stop, halt, end_s):
            if halt is not None and halt.is_set:
                await self._die_in_mid_run()
            elapsed_s = self._loop.now - start_s
            done = min(steps, steps_to_reach(elapsed_s, step_s, growth_s))
            if done < steps:
                steps = segment.num_tokens = done
                ends = self._ends = False
            await self._loop.sleep_until(start_s + steps_time_s(steps, step_s, growth_s))
        self._segment = None
        self._apply(steps)
        if steps < reserved and grown:
            self._return_unused(grown)
        self._stamp(decodes, segment)
        if ends:
            self._end_finished(decodes)
        return steps

    def _interrupted(self, stop: Event | None, halt: Event | None, end_s: float) -> Awaitable[bool]:
        """Whether one of the two is set by then."""
        if stop is None:
            if halt is None:
                return self._loop.sleep_until(end_s)  # False: nothing woke it but the time
            return self._loop.wait(halt, until=end_s)
        if halt is None:
            return self._loop.wait(stop, until=end_s)
        return self._loop.wait(stop, halt, until=end_s)

    async def _die_in_mid_run(self) -> None:
        """Where the device has died: the steps that were over count, and InstanceLost."""
        self.settle()
        try:
            await self.died()
        except InstanceLost:
            segment, self._segment = self._segment, None
            if self._applied and segment is not None:
                segment.num_tokens = self._applied
                self._stamp(list(self._decodes), segment)
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
