"""A system that answers every request at once, so that a run measures the harness itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.clock import Event, Loop
from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement
from harness.request import Request


class NullSystem:
    """Raises ValueError if the engine has instances or endpoints: use engine=none."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pass

    @staticmethod
    def place(
        config: Config, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> list[Placement]:
        return []

    def __init__(self, config: Config, *, loop: Loop, cluster: Cluster) -> None:
        del config  # has no fields
        if cluster.instances or cluster.endpoints:
            raise ValueError("system null uses no device: run it with engine=none")
        self._loop = loop
        self._answer = cluster.answer

    def submit(self, request: Request) -> None:
        self._answer(request)

    async def serve(self) -> None:
        await self._loop.wait(Event(self._loop))
