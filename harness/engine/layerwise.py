"""Runs of a batch's layers on real workers: each is a batch of one stage, whose worker keeps the
activations until the harness says who gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from harness.elastic.instance import ElasticInstance
from harness.elastic.layerwise import LayerRun
from harness.elastic.pipeline import Stage, StagedBatch
from harness.engine.fabric import TorchFabric
from harness.engine.pipeline import InFlight, TorchPipeline
from harness.request import Batch


class TorchLayerwise:
    def __init__(
        self, pipeline: Callable[[Sequence[Stage]], TorchPipeline], fabric: TorchFabric
    ) -> None:
        self._pipeline, self._fabric = pipeline, fabric
        self._kept: tuple[ElasticInstance, int] | None = None  # where activations rest, and whose
        self._ahead: int | None = None  # the run that they have been sent to
        self._numbers: list[tuple[str, int]] = []  # worker, number: of all runs and sends

    async def run(self, run: LayerRun) -> None:
        instance, previous = run.instance, run.previous
        if previous is not None and not run.sent:
            self.send(run.batch, previous, instance)
        number = next(self._fabric.batch_numbers) if previous is None else self._ahead
        assert number is not None
        self._numbers.append((instance.name, number))
        stages = [(instance, run.layers)]
        pipeline = self._pipeline(stages)

        def send(flight: InFlight) -> None:
            work = pipeline.stage_work(flight, 0, inf)
            work.keeps, work.previous = not run.last, None if previous is None else previous.name
            if previous is not None:
                work.batch = replace(work.batch, ids=())
            pipeline.tell(flight, 0, work)

        staged = StagedBatch(run.batch, 1, stages, [{}], [instance, *run.others])
        await pipeline.follow(staged, number, send)
        self._kept, self._ahead = (instance, number), None

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        """Under the number of the run that is to have them."""
        assert self._kept is not None
        assert self._kept[0] is source
        self._fabric.connect(source.name, target.name)
        self._ahead = next(self._fabric.batch_numbers)
        self._numbers.append((target.name, self._ahead))
        self._fabric.commands[source.name].worker.send(
            {
                "op": "pass", "kept": self._kept[1], "batch": self._ahead, "to": target.name,
                "path": self._fabric.path(source.memory, target.memory),
            }
        )  # fmt: skip

    def end(self) -> None:
        for name, number in self._numbers:
            self._fabric.abandon(name, number, broken=False)
