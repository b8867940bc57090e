"""KunServe (preprint of December 2024): the parts of Fig. 7 put together.

The group manager dispatches requests to the least loaded group (§4.3). A monitor looks at every
group's memory each `poll_s`. If memory will run short, the planner merges groups (§4.1). If demand
is low, they are restored (§4.2). The code is the same live and simulated. README.md maps sections
to files and says what the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.config import KunServeConfig
from systems.kunserve.configured import manager_of
from systems.kunserve.planner import Planner
from systems.kunserve.trigger import Trigger
from systems.serving.elastic import elastic_of


class KunServe:
    """Serves one model. Raises ValueError for instances that cannot drop parameters, or if a host
    has no room for a copy of the weights."""

    Config = KunServeConfig

    @staticmethod
    def place(
        config: KunServeConfig, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        placements = dedicated(models, hardware)
        return [replace(p, elastic=Elastic(page_layers=1, kv_across=True)) for p in placements]

    def __init__(self, config: KunServeConfig, *, loop: Loop, cluster: Cluster) -> None:
        elastic = elastic_of(cluster, "kunserve needs instances whose weights and KV move")
        self._config, self._loop, self._cluster = config, loop, cluster
        self._manager = manager_of(config, loop, cluster, elastic)
        self._trigger = Trigger(config, self._manager)
        self._planner = Planner(config, self._manager, cluster)
        self._kv = elastic.instances[0].kv
        layouts = [instance.layout for instance in elastic.instances]
        self._most_blocks = min(each.num_pages() // each.num_groups for each in layouts)
        self._lost: list[str] = []
        self._attention = Event(loop)
        self._num_arrived = 0
        elastic.on_lost = self._on_lost

    def submit(self, request: Request) -> None:
        self._num_arrived += 1
        kv, most = self._kv, self._most_blocks
        if kv.blocks_for(request.prompt_tokens + request.output_tokens) > most:
            self._cluster.drop(
                request, f"needs more KV than the {most * kv.block_tokens} tokens of an instance"
            )
            return
        self._manager.dispatch(request)

    async def serve(self) -> None:
        await self._planner.begin()
        while True:
            await self._loop.wait(self._attention, until=self._loop.now + self._config.poll_s)
            self._attention.clear()
            while self._lost:
                await self._planner.recover(self._lost.pop())
            await self._poll()

    def _on_lost(self, instance: ElasticInstance) -> None:
        self._lost.append(instance.name)
        self._attention.set()

    async def _poll(self) -> None:
        """Looks at every group (§4.3): drops, restores, or leaves all as it is."""
        manager = self._manager
        await manager.end_left()
        num_arrived, self._num_arrived = self._num_arrived, 0
        for server in [*manager.servers, *manager.leaving]:
            server.wake(idle=True)
        decisions = self._trigger.decisions(num_arrived)
        if "drop" in decisions.values():
            await self._planner.drop(self._trigger.required_bytes())
        elif self._config.restore != "never":
            for server, decision in decisions.items():
                if decision == "restore" and server not in manager.jobs:
                    self._planner.restore(server)
