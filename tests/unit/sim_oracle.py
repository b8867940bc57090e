"""A per-token reference of the simulated instance: the same cost model, one step at a time."""

from math import inf

from harness.clock import Event
from harness.device.base import advance
from harness.records.record import Segment
from harness.request import Batch
from harness.sim.instance import SimInstance


class PerTokenInstance(SimInstance):
    """Steps through decodes one iteration at a time, re-reading the batch each time."""

    async def execute(
        self, batch: Batch, *, max_steps: int | None = None, until: float = inf,
        stop: Event | None = None,
    ) -> int:  # fmt: skip
        if batch.chunks:
            return await super().execute(batch)
        steps = 0
        await self._loop.sleep(self._cost.turnaround_s)
        while True:
            start_s = self._loop.now
            context = sum(request.computed_tokens + 1 for request in batch.decodes)
            step_s, _ = self._cost.decode_step(len(batch.decodes), context)
            await self._loop.sleep_until(start_s + step_s)
            advance(batch)
            self._stamp(batch.decodes, Segment(start_s, 1, step_s, 0.0))
            steps += 1
            self._end_finished(batch.decodes)
            over = steps == max_steps or any(request.finished for request in batch.decodes)
            if over or self._loop.now >= until or (stop is not None and stop.is_set):
                return steps
            blocks = [self.kv.blocks_for(r.computed_tokens + 1) for r in batch.decodes]
            more = [
                max(0, n - self.kv.held[r.request_id])
                for n, r in zip(blocks, batch.decodes, strict=True)
            ]
            if sum(more) > self.kv.free_blocks:
                return steps
            for request in batch.decodes:
                assert self.kv.grow(request, request.computed_tokens + 1)
