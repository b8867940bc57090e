"""`+system=serverlessllm` and `+system=serverlessllm_plus`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.clock import Loop
from harness.cluster import Cluster
from harness.configuration.checks import words
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement, pooled
from harness.request import Request
from systems.serverlessllm.artifact import ArtifactConfig, ArtifactScheduler
from systems.serverlessllm.loading import Loader
from systems.serverlessllm.paper import PaperConfig, PaperScheduler

VALID = {"variant": ("paper", "artifact"), "order": ("fcfs", "sjf")}


class ServerlessLlm:
    """Raises ValueError if the engine has no pooled instances."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """The keys of `conf/system/serverlessllm.yaml`. Raises ValueError for unknown values."""

        variant: str  # paper or artifact
        order: str  # fcfs, or sjf with output lengths from an oracle (ServerlessLLM+)
        load_bytes_per_s: float | None  # to each device; null: the variant's
        restarts_engine: bool  # a device's engine is started anew for each model
        paper: PaperConfig
        artifact: ArtifactConfig

        def __post_init__(self) -> None:
            words(self, "", VALID)

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        return pooled(models, hardware)

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        if not cluster.pool:
            raise ValueError(
                "system serverlessllm needs instances that models take turns on: choose "
                "engine=torch or engine=sim"
            )
        artifact, rate = config.artifact, config.load_bytes_per_s
        restarts = config.restarts_engine
        self._scheduler: PaperScheduler | ArtifactScheduler
        if config.variant == "paper":
            loader = Loader(loop, cluster, rate, {}, restarts_engine=restarts)
            self._scheduler = PaperScheduler(
                config.paper, config.order, loader, loop=loop, cluster=cluster
            )
        else:
            rate = rate or artifact.load_bytes_per_s
            loader = Loader(loop, cluster, rate, artifact.model_bytes, restarts_engine=restarts)
            self._scheduler = ArtifactScheduler(
                artifact, config.order, loader, loop=loop, cluster=cluster
            )

    def submit(self, request: Request) -> None:
        self._scheduler.submit(request)

    async def serve(self) -> None:
        await self._scheduler.serve()
