"""What producer and consumer of one node share: the coordinator, and the memory behind each lease.

The coordinator counts bytes; a `KvStore` is the region that they are, as an IPC handle is between
processes. Bytes are of each device of a tensor-parallel group, which acts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from harness.clock import Loop, WallLoop
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.errors import InstanceLost
from systems.aqua.config import Coordination
from systems.aqua.coordinator.client import CoordinatorClient, Embedded, Remote
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.process import CoordinatorProcess
from systems.aqua.coordinator.requests import (
    Allocate,
    Free,
    Join,
    Leave,
    Offer,
    Reclaim,
    Refused,
)
from systems.aqua.coordinator.topology import Topology

GONE = 410  # HTTP's: a holder that has ended


def open_coordinator(topology: Topology, config: Coordination, loop: Loop) -> CoordinatorClient:
    """A process of its own where time is real (section 8), unless it is to be embedded."""
    timeout_s = config.heartbeat_timeout_s

    def process(wall: WallLoop) -> CoordinatorClient:
        return Remote(CoordinatorProcess(topology, config.port, timeout_s), wall)

    def embedded() -> CoordinatorClient:
        return Embedded(
            Coordinator(topology, None, lambda: loop.now, heartbeat_timeout_s=timeout_s)
        )

    return loop.service(process, embedded) if config.process else embedded()


@dataclass(slots=True)
class Leases:
    """All raise InstanceLost for a holder that has ended: it has died, or was not heard of."""

    coordinator: CoordinatorClient
    producers: Mapping[str, str]  # places by consumer, as the coordinator has them
    stores: dict[str, KvStore] = field(default_factory=dict)  # by lease
    on_change: list[Callable[[], None]] = field(default_factory=list)
    _names: int = 0

    async def join(self, holder: str) -> None:
        """On the device of the same name."""
        with lost_where_gone(holder):
            await self.coordinator.make(Join(holder, holder))

    async def offer(self, holder: str, store: KvStore) -> str:
        """The name of a new lease."""
        name = self._name(holder, "lease")
        num_bytes = store.kv.num_pages * store.page_bytes
        self.stores[name] = store  # a borrower may use it before we hear that it is known
        with lost_where_gone(holder):
            await self.coordinator.make(Offer(name, holder, num_bytes))
        self._tell()
        return name

    async def reclaim(self, holder: str, lease: str) -> None:
        """All of it; it ends once nothing is allocated in it."""
        with lost_where_gone(holder):
            await self.coordinator.make(Reclaim(lease, holder, 0))
        self._tell()

    async def has_ended(self, lease: str) -> bool:
        return lease not in await self.coordinator.leases()

    async def allocate(self, holder: str, num_bytes: int) -> tuple[str, str] | None:
        """The allocation's name and its lease; None: no lease has room for it."""
        name = self._name(holder, "tensor")
        with lost_where_gone(holder):
            lease = await self.coordinator.allocate(Allocate(name, holder, num_bytes))
        return None if lease is None else (name, lease)

    async def free(self, holder: str, allocation: str) -> None:
        with lost_where_gone(holder):
            await self.coordinator.make(Free(allocation, holder))
        self._tell()

    async def leave(self, holder: str) -> None:
        """`holder` is dead or done: its leases and allocations end."""
        await self.coordinator.make(Leave(holder))
        self._tell()

    async def overdrawn_bytes(self, holder: str) -> dict[str, int]:
        """By lease of its producer, where anything is."""
        leases = await self._of(holder)
        return {k: each["overdrawn_bytes"] for k, each in leases.items() if each["overdrawn_bytes"]}

    async def free_bytes(self, holder: str) -> dict[str, int]:
        """By lease of its producer, oldest first."""
        return {k: each["free_bytes"] for k, each in (await self._of(holder)).items()}

    async def _of(self, holder: str) -> dict[str, dict[str, Any]]:
        """What its producer lends it."""
        leases, producer = await self.coordinator.leases(), self.producers[holder]
        return {name: each for name, each in leases.items() if each["holder"] == producer}

    def _name(self, holder: str, kind: str) -> str:
        self._names += 1
        return f"{holder}:{kind}:{self._names}"

    def _tell(self) -> None:
        for tell in self.on_change:
            tell()


@contextmanager
def lost_where_gone(holder: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        if error.status != GONE:
            raise
        raise InstanceLost(holder, f"by the coordinator: {error}") from error


async def beat(
    coordinator: CoordinatorClient, holder: str, instance: ElasticInstance, interval_s: float,
    loop: Loop,
) -> None:  # fmt: skip
    """Heartbeats of a holder, while its instance lives."""
    while instance.lost is None:
        try:
            await coordinator.heartbeat(holder)
        except Refused:
            if instance.lost is None:
                raise
            return
        await loop.sleep(interval_s)
