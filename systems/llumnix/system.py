"""Llumnix in the three modes that KunServe compares with (KunServe §5.1).

The modes are replication, migration (of running requests, or of queued ones as in KunServe's code)
and a static pipeline. All parameters stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import positive, words
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.group import Group, alone
from systems.kunserve.group_kv import GroupKv
from systems.kunserve.group_manager import GroupManager, whole_bytes
from systems.kunserve.merge import equal_groups
from systems.kunserve.plan import throughput_greedy
from systems.kunserve.server import Server
from systems.llumnix.freeness import artifact_load
from systems.llumnix.migrating import Migrations
from systems.llumnix.migration import PairConfig, queued_moves
from systems.serving.elastic import elastic_of
from systems.serving.iteration import Limits

VALID = {"mode": ("replication", "migration", "pipeline"), "variant": ("paper", "artifact")}


class Llumnix:
    """Serves one model. Raises ValueError without elastic instances, or with several models."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """The keys of `conf/system/llumnix.yaml`. Raises ValueError for values that do not fit."""

        mode: str  # replication, migration or pipeline
        variant: str  # of migration: paper or artifact
        poll_s: float
        stages: int | None  # of a pipeline; None: as many as one throttling makes
        throttling_share: float  # R of that plan, as a share of the instances' KV memory
        pairs: PairConfig
        limits: Limits
        steps_beside: int  # decode steps at most of a batch beside which others run

        def __post_init__(self) -> None:
            words(self, "system", VALID)
            positive(self, "system", "poll_s", "throttling_share", "steps_beside")
            if self.stages is not None and self.mode != "pipeline":
                raise ValueError(
                    f"system.stages={self.stages} is for mode=pipeline, not mode={self.mode}"
                )

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        placements = dedicated(models, hardware)
        return [replace(p, elastic=Elastic(page_layers=1)) for p in placements]

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        elastic = elastic_of(cluster, "llumnix needs instances that can be a pipeline's stages")
        self._config, self._loop = config, loop
        instances = elastic.instances
        if len({instance.model.name for instance in instances}) > 1:
            raise ValueError("system llumnix serves one model: choose model_set=one")
        self._moves_running = config.mode == "migration" and config.variant == "paper"
        self._moves_queued = config.mode == "migration" and config.variant == "artifact"
        new_server = partial(
            Server,
            loop=loop,
            limits=config.limits,
            steps_beside=config.steps_beside,
            last_block=elastic.directory.gated if self._moves_running else None,
        )
        kv = GroupKv(elastic, loop, retry_s=config.poll_s)
        self._manager = GroupManager(elastic, loop, kv, new_server, artifact_load)
        self._migrations = Migrations(elastic, loop, config.pairs)
        self._groups = self._grouped(instances)
        self._lost: list[str] = []
        elastic.on_lost = lambda instance: self._lost.append(instance.name)

    def _grouped(self, instances: Sequence[ElasticInstance]) -> list[Group]:
        model, names = instances[0].model, [instance.name for instance in instances]
        if self._config.mode != "pipeline":
            return [alone(name, model.num_layers) for name in names]
        stages = self._config.stages
        if stages is None:
            required = int(self._config.throttling_share * whole_bytes(instances))
            stages = stages_of_one_throttling(names, required, model)
        return equal_groups(names, stages, model.num_layers)

    def submit(self, request: Request) -> None:
        self._manager.dispatch(request)

    async def serve(self) -> None:
        await self._manager.form(self._groups, [], [])
        while True:
            await self._loop.sleep(self._config.poll_s)
            while self._lost:
                await self._manager.recover(self._lost.pop())
            for server in self._manager.servers:
                server.wake(idle=True)
                if self._moves_queued:
                    self._migrate_queued(server)
            if self._moves_running:
                self._migrations.begin(self._manager.servers)

    def _migrate_queued(self, source: Server) -> None:
        others = {s.name: s for s in self._manager.servers if s is not source}
        queue = list(source.waiting)
        blocks = list(map(source.waiting.blocks_of, queue))
        moves = queued_moves(source.load(), blocks, [other.load() for other in others.values()])
        for move in moves:
            request = queue[move.place]
            source.waiting.remove(request)
            others[move.target].submit(request)


def stages_of_one_throttling(
    instances: Sequence[str], required_bytes: int, model: ModelSpec
) -> int:
    """The stages of the static pipeline that KunServe's paper compares with (KunServe §5.1): "The
    pipeline stage number is set to the buddy group size found by our algorithm under one memory
    throttling."

    required_bytes: memory for KV that the drop must free (R of Algorithm 1).
    """
    groups = [alone(name, model.num_layers) for name in instances]
    plan = throughput_greedy(groups, required_bytes, model)
    return max(len(group) for group in plan.groups)
