"""What a consumer borrows whose shards have a lender each (section 9.3: Llama-3.1-8B and AudioGen
lend to the two shards of Llama-3.1-70B).

Each shard is a borrower of its own at the coordinator. A tensor has a part on every shard, so it
lies in a lease of each lender, or in none: all or nothing. Otherwise as `leases.Leases`, where
names of leases and allocations are those of the shards, joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_region import KvStore
from systems.aqua.coordinator.client import CoordinatorClient
from systems.aqua.leases import Allocated, Leases

JOINED = " + "


class ShardLeases:
    """`places`: those of the shards, in their order. `beside`: makes one store of the shards'."""

    def __init__(
        self, leases: Leases, places: Sequence[str],
        beside: Callable[[Sequence[KvStore]], KvStore],
    ) -> None:  # fmt: skip
        self._leases, self._places, self._beside = leases, places, beside
        self.stores: dict[str, KvStore] = {}  # by joined lease

    @property
    def coordinator(self) -> CoordinatorClient | None:
        return self._leases.coordinator

    async def join(self, holder: str, instance: ElasticInstance) -> None:
        for place in self._places:
            await self._leases.join(place, instance)

    def leave(self, holder: str) -> None:
        for place in self._places:
            self._leases.leave(place)

    async def allocate(self, holder: str, num_bytes: int) -> Allocated | None:
        """Allocates bytes of every shard; None if one shard's lender has no room for them."""
        parts: list[Allocated] = []
        for place in self._places:
            found = await self._leases.allocate(place, num_bytes)
            if found is None:
                await self._free(part.name for part in parts)
                return None
            parts.append(found)
        lease = JOINED.join(part.lease for part in parts)
        if lease not in self.stores:
            self.stores[lease] = self._beside([self._leases.stores[part.lease] for part in parts])
        return Allocated(JOINED.join(part.name for part in parts), lease)

    async def free(self, holder: str, allocation: str) -> None:
        await self._free(allocation.split(JOINED))

    async def _free(self, parts: Iterable[str]) -> None:
        for place, part in zip(self._places, parts, strict=False):
            await self._leases.free(place, part)

    def of_lender(self, lease: str) -> list[str]:
        """The joined leases of which a lender's `lease` is a part."""
        return [name for name in self.stores if lease in name.split(JOINED)]

    def forget(self, allocations: Sequence[str]) -> None:
        """Gives back what the lenders that live had for a tensor that was lost with another."""
        for allocation in allocations:
            parts = allocation.split(JOINED)
            self._leases.loop.spawn(self._free(parts), name=f"{allocation} is lost")

    async def overdrawn_bytes(self, holder: str) -> dict[str, int]:
        """Overdrawn bytes by joined lease: the most that a shard's lender wants back."""
        each = [await self._leases.overdrawn_bytes(place) for place in self._places]
        found = {
            lease: max(of.get(part, 0) for of, part in zip(each, lease.split(JOINED), strict=True))
            for lease in self.stores
        }
        return {lease: size for lease, size in found.items() if size}

    async def free_bytes(self, holder: str) -> dict[str, int]:
        """Free bytes by joined lease: what is free in all of its parts."""
        each = [await self._leases.free_bytes(place) for place in self._places]
        return {
            JOINED.join(lease): min(of[part] for of, part in zip(each, lease, strict=True))
            for lease in product(*each)
        }
