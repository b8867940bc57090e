"""Llumnix in the three modes that KunServe compares with (KunServe §5.1).

The modes are replication, migration (of running requests, or of queued ones as in KunServe's code)
and a static pipeline. All parameters stay where they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.clock import Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.model_spec import ModelSpec
from harness.placement import Demand, Elastic, Placement, dedicated
from harness.request import Request
from systems.kunserve.accounts import load_of, whole_bytes
from systems.kunserve.group import Group, alone
from systems.kunserve.group_manager import GroupManager
from systems.kunserve.merge import equal_groups
from systems.kunserve.restore import Rates
from systems.kunserve.server import Server
from systems.llumnix.freeness import least_loaded
from systems.llumnix.migrating import Migrations
from systems.llumnix.migration import PairConfig, queued_moves
from systems.llumnix.pipeline import stages_of_one_throttling
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
        self._shaper = GroupManager(
            cluster.elastic, loop, self._new_server, self.submit, victims=0, chunk_bytes=None,
            rates=Rates(1.0, 1.0), retry_s=config.poll_s,
        )  # fmt: skip
        self._migrations = Migrations(cluster.elastic, loop, config.pairs)
        self._gated = cluster.elastic.directory.gated
        self._groups = self._grouped(instances)
        self._early = deque[Request]()

    def _grouped(self, instances: list[ElasticInstance]) -> list[Group]:
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
        servers = self._shaper.servers
        if not servers:
            self._early.append(request)
            return
        freest = least_loaded([load_of(server) for server in servers])
        next(server for server in servers if server.name == freest).submit(request)

    async def serve(self) -> None:
        await self._shaper.form(self._groups, [], [])
        while self._early:
            self.submit(self._early.popleft())
        while True:
            await self._loop.sleep(self._config.poll_s)
            for server in self._shaper.servers:
                server.wake(idle=True)
                if self._config.mode == "migration" and self._config.variant == "artifact":
                    self._migrate_queued(server)
            if self._moves_running:
                self._migrations.begin(self._shaper.servers)

    def _migrate_queued(self, source: Server) -> None:
        others = {s.name: s for s in self._shaper.servers if s is not source}
        moves = queued_moves(load_of(source), [load_of(other) for other in others.values()])
        queue = list(source.waiting)
        for move in moves:
            request = queue[move.place]
            source.waiting.remove(request)
            others[move.target].submit(request)
