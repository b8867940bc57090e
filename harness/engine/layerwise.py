"""The pieces of a batch's passage on real workers: each is a flight of one stage, which keeps its
activations until the harness says who gets them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from harness.elastic.instance import ElasticInstance
from harness.elastic.layerwise import LayerRun
from harness.elastic.pipeline import FlightPlan, Stage
from harness.engine.fabric import TorchFabric
from harness.engine.pipeline import TorchPipeline, UnderWay
from harness.request import Batch


class TorchLayerwise:
    def __init__(
        self, line: Callable[[Sequence[Stage]], TorchPipeline], fabric: TorchFabric
    ) -> None:
        self._line, self._fabric = line, fabric
        self._kept: tuple[ElasticInstance, int] | None = None  # where activations rest, and whose
        self._ahead: int | None = None  # the flight that they have been sent to
        self._flights: list[tuple[str, int]] = []  # worker, number: of all pieces and sends

    async def run(self, piece: LayerRun) -> None:
        instance = piece.instance
        stages = [(instance, piece.layers)]
        plan = FlightPlan(piece.batch, 1, stages, [{}])
        line = self._line(stages)
        assert instance.tables is not None
        instance.tables.reconcile(
            [r for r in piece.batch.requests if r.request_id in instance.kv.held]
        )
        if piece.previous is not None and not piece.sent:
            self.send(piece.batch, piece.previous, instance)
        number = self._ahead if piece.previous is not None else next(self._fabric.flight_numbers)
        assert number is not None
        self._flights.append((instance.name, number))
        first = piece.previous is None
        work = line.stage_work(plan, number, 0, inf)
        work = replace(
            work, keeps=not piece.last, ids=work.ids if first else [],
            previous=None if piece.previous is None else piece.previous.name,
        )  # fmt: skip

        def send(flight: UnderWay) -> None:
            line.tell(flight, 0, work)

        await line.follow(plan, number, {instance.name, *[o.name for o in piece.others]}, send)
        self._kept, self._ahead = (instance, number), None

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        """Under the number of the flight that is to have them."""
        assert self._kept is not None
        assert self._kept[0] is source
        self._fabric.connect(source.name, target.name)
        self._ahead = next(self._fabric.flight_numbers)
        self._flights.append((target.name, self._ahead))
        path = None if source is target else self._fabric.path(source.memory, target.memory)
        self._fabric.commands[source.name].worker.send(
            {
                "op": "pass", "kept": self._kept[1], "flight": self._ahead, "to": target.name,
                "path": path,
            }
        )  # fmt: skip

    def end(self) -> None:
        for name, number in self._flights:
            if name not in self._fabric.lost:
                self._fabric.commands[name].worker.send(
                    {"op": "abandon", "flight": number, "broken": False}
                )
