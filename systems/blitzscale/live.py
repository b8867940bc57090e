"""A live pair (§5.2): an overloaded prefill and one that loads serve the queue together.

step 1, no layer is there    the source takes whole batches
step 2, some are             each batch is split between the two (`split`)
step 3, all are              both take from the queue by themselves: the pair ends
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from harness.clock import Loop
from harness.device.elastic_cluster import ElasticCluster
from harness.device.pipeline import Pipeline
from harness.errors import InstanceLost
from harness.placement import Profile
from harness.request import Request
from systems.blitzscale.protocol import Step, step
from systems.blitzscale.role import Role
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Slot
from systems.blitzscale.split import Split, split


class Pair:
    """`ready_s`: when each layer is expected at the target. `most`: batches under way at once."""

    def __init__(
        self, source: Slot, target: Slot, ready_s: Sequence[float], most: int, serving: Serving,
        cluster: ElasticCluster, profile: Profile, loop: Loop,
    ) -> None:  # fmt: skip
        self._source, self._target, self._most = source, target, most
        self._ready_s = list(ready_s)
        self._serving, self._cluster = serving, cluster
        self._profile, self._loop = profile, loop
        self._model = source.instance.model
        self._here = 0  # layers at the target, from the first one on
        self._under_way = 0
        self._source_free_s = self._target_free_s = 0.0

    async def drive(self) -> None:
        self._source.paired = True
        self._source_free_s = self._own_batch_end_s()
        try:
            while not self._over():
                self._target.wake.clear()
                plan = self._next()
                if plan is None:
                    await self._loop.wait(self._target.wake)
                elif plan.start_s > self._loop.now:
                    await self._loop.wait(self._target.wake, until=plan.start_s)
                elif not self._launch(plan):
                    await self._loop.wait(self._target.wake)  # KV that leaves makes room
        finally:
            self._source.paired = False
            self._source.wake.set()

    def _over(self) -> bool:
        """Also where one of the two has died or has something else to do."""
        apart = not (
            self._source.is_at(Role.PREFILL, State.SERVING)
            and self._target.is_at(Role.PREFILL, State.LOADING)
        )
        return apart or self._step() is Step.REDISTRIBUTE

    def _step(self) -> Step:
        self._see_layers()
        return step(self._here, self._model.num_layers)

    def _see_layers(self) -> None:
        """Layers that have come; those to come are expected as much later or sooner."""
        now_s, resident = self._loop.now, self._target.instance.resident
        while self._here < self._model.num_layers and self._here in resident:
            late_s = now_s - self._ready_s[self._here]
            for layer in range(self._here, self._model.num_layers):
                self._ready_s[layer] += late_s
            self._here += 1
        for layer in range(self._here, self._model.num_layers):
            self._ready_s[layer] = max(self._ready_s[layer], now_s)

    def _next(self) -> Split | None:
        """The next batch's split; None: there is nothing to run, or enough is under way."""
        tokens = self._serving.prompts.next_tokens()
        if not tokens or self._under_way >= self._most:
            return None
        layer_s = self._profile.prefill_s(self._model, tokens) / self._model.num_layers
        found = split(
            self._ready_s, layer_s, self._loop.now, self._target_free_s, self._source_free_s
        )
        if found.on_target > self._here and found.start_s <= self._loop.now:
            return None  # its layer is late: `wake` tells of it
        return found

    def _launch(self, plan: Split) -> bool:
        """False: there is no room for the batch."""
        source, target = self._source.instance, self._target.instance
        layers = range(self._model.num_layers)
        stages = [(source, layers)]
        if plan.on_target:
            stages = [(target, layers[: plan.on_target]), (source, layers[plan.on_target :])]
        pipeline = self._cluster.pipeline(stages)
        batch = self._serving.prompts.take(pipeline.kv)
        if not batch:
            return False
        self._target_free_s, self._source_free_s = plan.target_free_s, plan.source_free_s
        self._under_way += 1
        self._loop.spawn(self._run(batch, pipeline), name="split batch")
        return True

    async def _run(self, batch: Sequence[Request], pipeline: Pipeline) -> None:
        with suppress(InstanceLost):  # the batch is in the queue again
            await self._serving.compute(batch, self._source, pipeline)
        self._under_way -= 1
        if not self._under_way:
            self._source_free_s = self._target_free_s = self._loop.now
        self._target.wake.set()

    def _own_batch_end_s(self) -> float:
        """When the source has done what it was at, as profiled."""
        if self._source.batch is None:
            return self._loop.now
        since_s, tokens = self._source.batch
        return since_s + self._profile.prefill_s(self._model, tokens)
