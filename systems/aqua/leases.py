"""What producer and consumer of one node share: the coordinator, and the memory behind each lease.

The coordinator counts bytes; a `KvStore` is the region that they are, as an IPC handle is between
processes. Bytes are of each device of a tensor-parallel group, which acts as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.clock import Loop
from harness.device.elastic import ElasticInstance
from harness.device.kv_store import KvStore
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.requests import Allocate, Free, Leave, Offer, Reclaim


@dataclass(slots=True)
class Leases:
    coordinator: Coordinator
    stores: dict[str, KvStore] = field(default_factory=dict)  # by lease
    on_change: list[Callable[[], None]] = field(default_factory=list)
    _names: int = 0

    def offer(self, holder: str, store: KvStore) -> str:
        """The name of a new lease."""
        name = self._name(holder, "lease")
        num_bytes = store.kv.num_pages * store.page_bytes
        self.coordinator.make(Offer(name, holder, num_bytes))
        self.stores[name] = store
        self._tell()
        return name

    def reclaim(self, holder: str, lease: str) -> None:
        """All of it; it ends once nothing is allocated in it."""
        self.coordinator.make(Reclaim(lease, holder, 0))
        self._tell()

    def has_ended(self, lease: str) -> bool:
        return lease not in self.coordinator.status()["leases"]

    def allocate(self, holder: str, num_bytes: int) -> tuple[str, str] | None:
        """The allocation's name and its lease; None: no lease has room for it."""
        name = self._name(holder, "tensor")
        self.coordinator.make(Allocate(name, holder, num_bytes))
        found = self.coordinator.allocation(name)
        return None if found is None else (name, found.lease)

    def free(self, holder: str, allocation: str) -> None:
        self.coordinator.make(Free(allocation, holder))
        self._tell()

    def leave(self, holder: str) -> None:
        """`holder` is dead or done: its leases and allocations end."""
        self.coordinator.make(Leave(holder))
        self._tell()

    def overdrawn_bytes(self) -> dict[str, int]:
        """By lease, where anything is."""
        leases = self.coordinator.status()["leases"]
        return {k: each["overdrawn_bytes"] for k, each in leases.items() if each["overdrawn_bytes"]}

    def free_bytes(self) -> dict[str, int]:
        """By lease, oldest first."""
        return {k: each["free_bytes"] for k, each in self.coordinator.status()["leases"].items()}

    def _name(self, holder: str, kind: str) -> str:
        self._names += 1
        return f"{holder} {kind} {self._names}"

    def _tell(self) -> None:
        for tell in self.on_change:
            tell()


async def beat(
    coordinator: Coordinator, instance: ElasticInstance, interval_s: float, loop: Loop
) -> None:
    """Heartbeats of a holder, while its instance lives."""
    while instance.lost is None:
        coordinator.heartbeat(instance.name)
        await loop.sleep(interval_s)
