"""What a serving system is to the harness: something that takes requests and serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.placement import Demand, Placement
from harness.request import Request


@dataclass(kw_only=True, slots=True, frozen=True)
class ServerPlugin:
    """What a system puts into vLLM servers, which then schedule by it."""

    scheduler: Mapping[str, Any]  # vLLM's values of its scheduler, scheduler_cls among them
    arguments: Sequence[str]  # more words of the servers' command line
    python_path: Path  # where the servers find the plug-in
    counters: str  # its counters on the servers' /metrics begin so
    proof: str  # the one of them that counts wherever it schedules
    gpus_beside: int = 0  # how many GPUs behind their own the servers see, for memory lent there


class System(Protocol):
    """Built as `System(config, loop=..., cluster=...)`; raises ValueError where the cluster
    cannot run it, with what it needs and what there is.

    A system that also runs inside vLLM names the class that does so as `in_vllm`, with
    `plugin(config, placements)`, a context that yields its ServerPlugin, and `reads`, the keys
    that it reads. One with processes beside its instances has them as `parts`, {name: Victim}, so
    that faults can strike them.
    """

    @staticmethod
    def place(
        config: Any, models: Mapping[str, ModelSpec], hardware: Hardware, demand: Demand
    ) -> Sequence[Placement]:
        """The instances that it wants, given its Config; asked before the engine starts. Raises
        UsageError where the hardware cannot hold the models."""
        ...

    def submit(self, request: Request) -> None:
        """Takes an arriving request; returns at once."""
        ...

    async def serve(self) -> None:
        """Serves until cancelled by the end of the run."""
        ...
