"""Llumnix in the three modes that KunServe compares with (KunServe §5.1).

The modes are replication, migration (of running requests, or of queued ones as in KunServe's code)
and a static pipeline. All parameters stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.clock import Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.group import Group, alone
from systems.kunserve.group_manager import GroupManager, whole_bytes
from systems.kunserve.merge import equal_groups
from systems.kunserve.plan import throughput_greedy
from systems.kunserve.server import Server
from systems.llumnix.freeness import artifact_load
from systems.llumnix.migrating import Migrations
from systems.llumnix.migration import PairConfig, queued_moves
from systems.serving.iteration import Limits

MODES = ("replication", "migration", "pipeline")
VARIANTS = ("paper", "artifact")


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
            if self.mode not in MODES:
                raise ValueError(f"system.mode={self.mode} is unknown; valid: {', '.join(MODES)}")
            if self.variant not in VARIANTS:
                raise ValueError(
                    f"system.variant={self.variant} is unknown; valid: {', '.join(VARIANTS)}"
                )
            if self.stages is not None and self.mode != "pipeline":
                raise ValueError(
                    f"system.stages={self.stages} is for mode=pipeline, not mode={self.mode}"
                )
            for name in ("poll_s", "throttling_share", "steps_beside"):
                if not getattr(self, name) > 0:
                    raise ValueError(f"system.{name}={getattr(self, name)} must be above 0")

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        placements = dedicated(models, hardware)
        return [replace(p, elastic=Elastic(page_layers=1)) for p in placements]

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        if cluster.elastic is None:
            raise ValueError(
                "system llumnix needs instances that can be a pipeline's stages: choose "
                "engine=torch or engine=sim"
            )
        self._config, self._loop = config, loop
        instances = cluster.elastic.instances
        if len({instance.model.name for instance in instances}) > 1:
            raise ValueError("system llumnix serves one model: choose model_set=one")
        self._manager = GroupManager(
            cluster.elastic, loop, self._new_server, artifact_load, retry_s=config.poll_s
        )
        self._migrations = Migrations(cluster.elastic, loop, config.pairs)
        self._gated = cluster.elastic.directory.gated
        self._groups = self._grouped(instances)

    def _grouped(self, instances: Sequence[ElasticInstance]) -> list[Group]:
        model, names = instances[0].model, [instance.name for instance in instances]
        if self._config.mode != "pipeline":
            return [alone(name, model.num_layers) for name in names]
        stages = self._config.stages
        if stages is None:
            required = int(self._config.throttling_share * whole_bytes(instances))
            stages = stages_of_one_throttling(names, required, model)
        return equal_groups(names, stages, model.num_layers)

    def _new_server(self, group: Group, executor: ElasticInstance | Pipeline) -> Server:
        config = self._config
        tokens = config.limits.max_num_batched_tokens
        server = Server(
            group, executor, self._loop, config.limits, config.steps_beside, lambda server: tokens
        )
        if self._moves_running:
            server.last_block = self._gated
        return server

    @property
    def _moves_running(self) -> bool:
        return self._config.mode == "migration" and self._config.variant == "paper"

    def submit(self, request: Request) -> None:
        self._manager.dispatch(request)

    async def serve(self) -> None:
        await self._manager.form(self._groups, [], [])
        while True:
            await self._loop.sleep(self._config.poll_s)
            for server in self._manager.servers:
                server.wake(idle=True)
                if self._config.mode == "migration" and self._config.variant == "artifact":
                    self._migrate_queued(server)
            if self._moves_running:
                self._migrations.begin(self._manager.servers)

    def _migrate_queued(self, source: Server) -> None:
        others = {s.name: s for s in self._manager.servers if s is not source}
        moves = queued_moves(source.load(), [other.load() for other in others.values()])
        queue = list(source.waiting)
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
