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
from harness.device.base import Arriving, BaseInstance, advance
from harness.device.block_pool import BlockPool
from harness.errors import InstanceLost
from harness.model_spec import ModelSpec
from harness.records.record import Recorder, Segment
from harness.request import Batch, Request
from harness.sim.compute import Compute, through


def context_tokens(decodes: list[Request]) -> int:
    """The number of tokens that the next step of `decodes` attends to."""
    tokens = len(decodes)
    for request in decodes:  # not a sum of a list: compiled, its integers would become objects
        tokens += request.computed_tokens
    return tokens


def prefilled(batch: Batch) -> list[tuple[int, int]]:
    """The batch's chunks as `CostModel.mixed_step` asks for them."""
    return [(request.computed_tokens, n) for request, n in batch.chunks]


def terms(batch: Batch) -> tuple[list[tuple[int, int]], int, int]:
    """What `CostModel.mixed_step` asks of a batch."""
    return prefilled(batch), len(batch.decodes), context_tokens(batch.decodes)


async def no_death() -> None:
    """Does nothing: for a device that is not under a cluster's fault injection."""


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
        self.died = no_death  # raises InstanceLost, once that is known, where the device has died
        self.may_fail = False  # a fault is planned: every run can be interrupted
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
        interrupt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        self._begin(batch, max_steps)
        compute = self.compute
        if self.may_fail:
            interrupt = interrupt or await self._interruptible()
        if compute.busy or compute.booked_until_s > self._loop.now:
            await self._enter()
        compute.busy, compute.interrupt, lent_s = True, interrupt, compute.lent_s
        try:
            if batch.chunks or arriving is not None:
                return await self._mixed_iteration(batch, interrupt, arriving)
            return await self._decode_macro_step(batch, max_steps, until, stop, interrupt)
        finally:
            self._running = False
            self._last_step_s = self._loop.now
            if compute.lent_s > lent_s:  # while it ran, by attention for others
                compute.booked_until_s = self._loop.now + compute.lent_s - lent_s
            if compute.turns:
                compute.leave()
            else:
                compute.busy = False

    async def _enter(self) -> None:
        """Waits for its turn. InstanceLost where the device has died meanwhile."""
        await self.compute.enter()
        if self.may_fail:
            try:
                await self.died()
            except InstanceLost:
                self._running = False
                self.compute.leave()
                raise

    async def _interruptible(self) -> Event:
        """What ends a run of an instance that a fault is planned for. InstanceLost where it has
        died."""
        try:
            await self.died()
        except InstanceLost:
            self._running = False
            raise
        return Event(self._loop)

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
        self, batch: Batch, interrupt: Event | None, arriving: Arriving | None
    ) -> int:
        start_s = self._loop.now
        num_decodes, context = len(batch.decodes), batch.context_tokens
        if batch.chunks:
            step_s = self._prefill_cost.mixed_step(prefilled(batch), num_decodes, context)
        else:  # decodes that wait for layers
            step_s = self._cost.decode_step(num_decodes, context)[0]
        step_s += self._cost.turnaround_s
        if arriving is not None:
            await through(self._loop, arriving, step_s)
            await self.died()
            step_s = self._loop.now - start_s
        elif interrupt is None:
            await self._loop.sleep_until(start_s + step_s)
        elif await self._loop.wait(interrupt, until=start_s + step_s):
            await self.died()
            await self._loop.sleep_until(start_s + step_s)
        sampled = batch.decodes + advance(batch)
        if sampled:
            self._stamp(sampled, Segment(start_s, 1, step_s, 0.0))
            self._end_finished(sampled)
        return 1

    async def _decode_macro_step(
        self,
        batch: Batch,
        max_steps: int | None,
        until: float,
        stop: Event | None,
        interrupt: Event | None,
    ) -> int:
        start_s = self._loop.now + self._cost.turnaround_s  # of the first step
        decodes = batch.decodes
        step_s, growth_s = self._cost.decode_step(len(decodes), batch.context_tokens)
        by_then = inf if until == inf else steps_to_reach(until - start_s, step_s, growth_s)
        steps, grown, ends = self._reserve(batch, max_steps, by_then)
        reserved = steps
        self._segment = segment = Segment(start_s, steps, step_s, growth_s)
        self._decodes, self._applied, self._ends = decodes, 0, ends
        end_s = start_s + steps_time_s(steps, step_s, growth_s)
        if await self._interrupted(stop, interrupt, end_s):
            if interrupt is not None and interrupt.is_set:
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
            self.kv.shrink_to_computed(grown)
        self._stamp(decodes, segment)
        if ends:
            self._end_finished(decodes)
        return steps

    def _interrupted(
        self, stop: Event | None, interrupt: Event | None, end_s: float
    ) -> Awaitable[bool]:
        """Whether one of the two is set by then."""
        if stop is None:
            if interrupt is None:
                return self._loop.sleep_until(end_s)  # False: nothing woke it but the time
            return self._loop.wait(interrupt, until=end_s)
        if interrupt is None:
            return self._loop.wait(stop, until=end_s)
        return self._loop.wait(stop, interrupt, until=end_s)

    async def _die_in_mid_run(self) -> None:
        """Counts the steps that were over and raises InstanceLost where the device has died."""
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
