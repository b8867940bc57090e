"""A policy on the serving kit: scale out by loading layers from a peer (BlitzScale §5.1, Fig. 2).

The first instance serves. When its queue grows, the next one loads all layers from it and serves
from then on. `docs/add-a-system.md` runs it as a system.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.clock import Loop
from harness.cluster import Cluster
from harness.elastic.instance import ElasticInstance
from harness.placement import Elastic, Placement, dedicated
from harness.request import Request
from harness.running.testbed import Bed
from systems.serving.elastic import elastic_of
from systems.serving.iteration import Limits
from systems.serving.replica import Replica


class ScaleOut:
    @dataclass(kw_only=True, slots=True)
    class Config:
        queue_limit: int  # an instance is added if more requests wait at the least loaded one
        limits: Limits  # of an instance

    @staticmethod
    def place(config: Config, models: Any, hardware: Any, demand: Any) -> list[Placement]:
        first, *others = dedicated(models, hardware)
        empty = [replace(other, elastic=Elastic(resident=range(0))) for other in others]
        return [replace(first, elastic=Elastic()), *empty]

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        self._config, self._loop = config, loop
        self._elastic = elastic_of(cluster, "scale_out loads weights from peers")
        self._first, *self._empty = self._elastic.instances
        self._replicas = [Replica(self._first, self._first.kv, loop, config.limits)]
        self._loading = False

    def submit(self, request: Request) -> None:
        least = min(self._replicas, key=lambda each: len(each.waiting) + len(each.running))
        least.submit(request)
        crowded = len(least.waiting) > self._config.queue_limit
        if crowded and self._empty and not self._loading:
            self._loading = True
            self._loop.spawn(self._scale_out(self._empty.pop(0)), name="scale out")

    async def _scale_out(self, new: ElasticInstance) -> None:
        self._elastic.take(new, "loading")
        await new.load(range(new.model.num_layers), self._first)  # which serves meanwhile
        self._replicas.append(Replica(new, new.kv, self._loop, self._config.limits))
        self._elastic.take(new, "serving")
        self._loading = False
        await self._replicas[-1].serve()

    async def serve(self) -> None:
        self._elastic.take(self._first, "serving")
        await self._replicas[0].serve()


NUM_INSTANCES, PAGE_LAYERS, RESIDENT = 2, 1, {1: range(0)}  # the second instance is empty


async def story(bed: Bed) -> list[Request]:
    limits = Limits(
        max_num_seqs=2, max_num_batched_tokens=64, enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
    )  # fmt: skip
    config = ScaleOut.Config(queue_limit=2, limits=limits)
    system = ScaleOut(config, loop=bed.loop, cluster=bed.given)
    bed.loop.spawn(system.serve(), name="system")
    for number in range(32):
        system.submit(bed.request(20, 40))
        await bed.loop.sleep(0.0 if number % 8 else 0.05)  # bursts
    while not all(request.finished for request in bed.requests):
        await bed.loop.sleep(0.01)
    assert len({bed.recorder.records[r.request_id].instance for r in bed.requests}) == 2
    return bed.requests
