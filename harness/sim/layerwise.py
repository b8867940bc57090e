"""Runs of a batch's layers in virtual time: each is a stage, the activations' way a hop."""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Event, Loop
from harness.cost.model import CostModel
from harness.elastic.instance import ElasticInstance
from harness.elastic.layerwise import LayerRun
from harness.model_spec import ModelSpec
from harness.records.record import Recorder
from harness.request import Batch
from harness.sim.fabric import IN_TURN, SimFabric
from harness.sim.instance import terms
from harness.sim.pipeline import URGENT, compute_of, stamp


class SimLayerwise:
    """`cost`: of so many layers; the first run has the constants of an iteration."""

    def __init__(
        self, cost: Callable[[ModelSpec, int, float], CostModel], fabric: SimFabric, loop: Loop,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self._cost, self._fabric, self._loop, self._recorder = cost, fabric, loop, recorder
        self._arrived: Event | None = None  # of what was sent last
        self._start_s: float | None = None

    async def run(self, run: LayerRun) -> None:
        instance, previous = run.instance, run.previous
        if self._start_s is None:
            self._start_s = self._loop.now
        if previous is not None and previous is not instance:
            if not run.sent:
                self.send(run.batch, previous, instance)
            assert self._arrived is not None
            await self._loop.wait(self._arrived)
        cost = self._cost(instance.model, len(run.layers), float(previous is None))
        time_s = cost.mixed_step(*terms(run.batch))
        compute = compute_of(instance)
        await compute.enter()
        await self._loop.sleep(time_s + (cost.turnaround_s if previous is None else 0.0))
        compute.leave()
        for each in (instance, *run.others):
            await self._fabric.require(each.name)
        if run.last:
            stamp(run.batch, self._start_s, instance.name, self._loop, self._recorder)

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        arrived = self._arrived = Event(self._loop)
        num_bytes = source.model.activation_bytes_per_token * batch.num_tokens

        async def cross() -> None:
            await self._fabric.network.transfer(
                source.memory.place, target.memory.place, num_bytes, stream=IN_TURN,
                priority=URGENT,
            )  # fmt: skip
            arrived.set()

        self._loop.spawn(cross(), name="activations")

    def end(self) -> None:
        pass
