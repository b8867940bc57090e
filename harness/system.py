"""What a serving system is to the harness: something that takes requests and serves them."""

from __future__ import annotations

from typing import Protocol

from harness.clock import Loop
from harness.cluster import Cluster
from harness.request import Request


class System(Protocol):
    """Built as `System(config, loop=..., cluster=...)`; raises ValueError where the cluster
    cannot run it, with what it needs and what there is."""

    def submit(self, request: Request) -> None:
        """Takes an arriving request; returns at once."""
        ...

    async def serve(self) -> None:
        """Serves until cancelled by the end of the run."""
        ...


__all__ = ["Cluster", "Loop", "Request", "System"]
