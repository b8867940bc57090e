"""What producers and consumers of a run share: the coordinator, and the memory behind each lease.

The coordinator counts bytes; a `KvStore` is the region that they are, as an IPC handle is between
processes. Bytes are of each device of a tensor-parallel group, which acts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.clock import Loop
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_region import KvStore
from harness.errors import InstanceLost
from systems.aqua.coordinator.client import CoordinatorClient
from systems.aqua.coordinator.ledger import GONE, Refused
from systems.aqua.coordinator.requests import Allocate, Change, Free, Join, Leave, Offer, Reclaim


class Allocated(NamedTuple):
    name: str  # the allocation's name at the coordinator
    lease: str


@dataclass(slots=True)
class Leases:
    """What producers lend, at the coordinator. All methods raise InstanceLost for a holder that has
    ended: it has died, or was not heard of."""

    coordinator: CoordinatorClient | None  # None: nobody lends, there is DRAM alone
    producers: Mapping[str, str]  # places by consumer, as the coordinator has them
    loop: Loop
    beat_s: float  # time between heartbeats
    stores: dict[str, KvStore] = field(default_factory=dict)  # stores by lease
    on_change: list[Callable[[], None]] = field(default_factory=list)
    _names: int = 0

    async def join(self, holder: str, instance: ElasticInstance) -> None:
        """Enters `holder` on the device of the same name, with heartbeats while the instance
        lives."""
        if self.coordinator is not None:
            await self._make(Join(holder, holder))
            pulse = self._beat(self.coordinator, holder, instance)
            self.loop.spawn(pulse, name=f"heartbeat of {holder}")

    async def _beat(
        self, coordinator: CoordinatorClient, holder: str, instance: ElasticInstance
    ) -> None:
        while instance.lost is None:
            try:
                await coordinator.heartbeat(holder)
            except Refused:
                if instance.lost is None:
                    raise
                return
            await self.loop.sleep(self.beat_s)

    def leave(self, holder: str) -> None:
        """Ends the leases and allocations of `holder`, which is dead."""
        if self.coordinator is not None:
            self.loop.spawn(self._change(Leave(holder)), name=f"{holder} has left")

    async def offer(self, holder: str, store: KvStore) -> str:
        """Offers memory to borrowers; returns the name of the new lease."""
        name = self._name(holder, "lease")
        self.stores[name] = store  # a borrower may use it before we hear that it is known
        await self._change(Offer(name, holder, store.kv.num_pages * store.page_bytes))
        return name

    async def reclaim(self, holder: str, lease: str) -> None:
        """Reclaims all of the lease; it ends once nothing is allocated in it."""
        await self._change(Reclaim(lease, holder, 0))

    async def allocate(self, holder: str, num_bytes: int) -> Allocated | None:
        """Allocates bytes in a lease; None if no lease has room for them."""
        if self.coordinator is None:
            return None
        name = self._name(holder, "tensor")
        lease = await self._make(Allocate(name, holder, num_bytes))
        return None if lease is None else Allocated(name, lease)

    async def free(self, holder: str, allocation: str) -> None:
        await self._change(Free(allocation, holder))

    def of_lender(self, lease: str) -> list[str]:
        """The leases, as borrowers name them, that a lender's `lease` is of: itself."""
        return [lease]

    def forget(self, allocations: Sequence[str]) -> None:
        """Nothing to do: allocations have ended with the dead lender's lease."""

    def close(self) -> None:
        """Closes the coordinator, as the run is over."""
        if self.coordinator is not None:
            self.coordinator.close()

    async def has_ended(self, lease: str) -> bool:
        return lease not in await self._all()

    async def overdrawn_bytes(self, holder: str) -> dict[str, int]:
        """Overdrawn bytes by lease of the holder's producer, of the leases that have any."""
        leases = await self._of(holder)
        return {k: each["overdrawn_bytes"] for k, each in leases.items() if each["overdrawn_bytes"]}

    async def free_bytes(self, holder: str) -> dict[str, int]:
        """Free bytes by lease of the holder's producer, oldest first."""
        return {k: each["free_bytes"] for k, each in (await self._of(holder)).items()}

    async def _of(self, holder: str) -> dict[str, dict[str, Any]]:
        """The leases that the holder's producer lends it."""
        leases = await self._all()
        return {k: each for k, each in leases.items() if each["holder"] == self.producers[holder]}

    async def _all(self) -> dict[str, dict[str, Any]]:
        return {} if self.coordinator is None else await self.coordinator.leases()

    def _name(self, holder: str, kind: str) -> str:
        self._names += 1
        return f"{holder}:{kind}:{self._names}"

    async def _change(self, change: Change) -> None:
        """Makes the change, and tells who waits for changes."""
        await self._make(change)
        for tell in self.on_change:
            tell()

    async def _make(self, change: Change) -> str | None:
        assert self.coordinator is not None, "somebody lends"
        try:
            return await self.coordinator.make(change)
        except Refused as error:
            if error.status != GONE:
                raise
            raise InstanceLost(change.holder, f"by the coordinator: {error}") from error
