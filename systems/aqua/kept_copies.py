"""Swap space whose copies stay when their requests are paged in (`dirty_only`, the public code's
way), so that the next page-out copies only the blocks that were written since.

A copy's blocks in its store are those of a stand-in, a request that never runs; what is paged out
has its KV there and nowhere else. A copy of who is on the device is given up when its request ends,
when its lease is asked back or lost, when others need its room, and where it lies in DRAM and a
lease has room for all of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.elastic.page_tables import KvCopy
from harness.errors import InstanceLost, RunError
from harness.request import Request
from systems.aqua.config import MigrationVariant
from systems.aqua.leases import Leases
from systems.aqua.migration import Move
from systems.aqua.paging import blocks_out
from systems.aqua.prefix_cache import PrefixTensor
from systems.aqua.swap_space import SwapSpace, said
from systems.aqua.tensors import DRAM, Place


class KeptCopies(SwapSpace):
    """As `SwapSpace`. A stand-in's `computed_tokens` are those that its copy has."""

    def __init__(
        self, cluster: ElasticCluster, consumer: ElasticInstance, leases: Leases | None,
        dram: KvStore, variant: MigrationVariant, chunk_bytes: int | None, issue_s: float,
    ) -> None:  # fmt: skip
        super().__init__(cluster, consumer, leases, dram, variant, chunk_bytes, issue_s)
        self._keepers: dict[Hashable, Request] = {}  # stand-ins, by request_id

    def in_dram(self) -> list[bool]:
        names = [n for n in self.tensors if not isinstance(n, PrefixTensor) and not self._here(n)]
        return [self.tensors.in_dram(name) for name in names]

    # Paging

    async def page_out(self, requests: Sequence[Request]) -> None:
        leaving = {request.request_id for request in requests}
        by_place: dict[Place, list[Request]] = {}
        for request in requests:
            place = await self._room_in_copy(request)
            if place is None:
                await self._forget([request])
                place = await self._new_copy(request, leaving)
            if place is None:
                self._consumer.evict(request)
            else:
                by_place.setdefault(place, []).append(request)
        for place, group in by_place.items():
            await self._save(group, place)

    async def _save(self, requests: Sequence[Request], place: Place) -> None:
        """Whose lender dies meanwhile stays on the device."""
        kv = self._consumer.kv
        copies = []
        for request in requests:
            keeper = self._keeper(request.request_id)
            blocks = blocks_out(
                request.computed_tokens, keeper.computed_tokens, kv.block_tokens, dirty_only=True
            )
            copies.append(KvCopy(request, keeper, blocks))
        await self._stage_blocks(sum(len(each.blocks) for each in copies), "gather")
        if not await self._copy_all(copies, requests, place, out=True):
            return
        for request, keeper, _ in copies:
            if request.request_id in self.tensors:
                keeper.computed_tokens = request.computed_tokens
                self._cluster.directory.forget(request)
                kv.release(request)

    async def page_in(self, requests: Sequence[Request]) -> None:
        kv = self._consumer.kv
        by_place: dict[Place, list[Request]] = {}
        for request in requests:
            if request.request_id in self.tensors:  # else lost with its lender, just before
                (place,) = self.tensors.resolve(request.request_id)
                by_place.setdefault(place, []).append(request)
        for place, group in by_place.items():
            group = [request for request in group if request.request_id in self.tensors]
            copies = []
            for request in group:
                if not kv.grow(request, request.computed_tokens):
                    raise RunError(f"request {request.request_id} has no room within its slice")
                blocks = range(kv.blocks_for(request.computed_tokens))
                copies.append(KvCopy(self._keeper(request.request_id), request, blocks))
            if not await self._copy_all(copies, group, place, out=False):
                continue
            await self._stage_blocks(sum(len(each.blocks) for each in copies), "scatter")

    async def _copy_all(
        self, copies: Sequence[KvCopy], of: Sequence[Request], place: Place, *, out: bool
    ) -> bool:
        """False: the lender died, and `lose` has seen to it."""
        ends = (self._consumer, self._store(place)) if out else (self._store(place), self._consumer)
        try:
            purpose = f"page {'out to' if out else 'in from'} {said(place)}"
            await self._cluster.save_kv(
                copies, self._layers, *ends, of=of, sending=self._sending(purpose)
            )
        except InstanceLost:
            self._consumer.check_alive()
            if not out:  # nothing of them is on the device
                for request in of:
                    self._consumer.kv.release(request)
            if place.lease is not None:
                self.lose(place.lease)
            return False
        return True

    # Room

    async def _room_in_copy(self, request: Request) -> Place | None:
        """Where its copy lies, once that has room for all of it. None: there is none, it has no
        room, or there is a better place."""
        name = request.request_id
        if name not in self.tensors:
            return None
        (place,) = self.tensors.resolve(name)
        store, keeper = self._store(place), self._keeper(name)
        if place == DRAM and self._leases is not None:
            free = await self._leases.free_bytes(self._consumer.name)
            if max(free.values(), default=0) >= self.num_bytes(self._blocks(request)):
                return None
        more = self._blocks(request) - store.kv.held[keeper.request_id]
        if more > 0:
            if place.lease is not None:
                found = await self._room(self.num_bytes(more))
                if found is None:
                    return None
                if found[1] != place.lease:
                    await self._free(found[0])
                    return None
                self._allocations[name].append(found[0])
            if not self.tensors.grow(name, 0, self.num_bytes(more)):
                return None
            grown = store.kv.grow(keeper, request.computed_tokens)
            assert grown, "it was counted"
        return place

    async def _new_copy(self, request: Request, leaving: set[int]) -> Place | None:
        """None: no place has room, though all copies but those of `leaving` were given up."""
        name, blocks = request.request_id, self._blocks(request)
        size = self.num_bytes(blocks)
        found = await self._room(size)
        while found is None and await self._give_up_one(leaving, leased=True):
            found = await self._room(size)
        room = {} if found is None else {found[1]: size}
        places = self.tensors.allocate(name, [size], [room])
        while places is None and await self._give_up_one(leaving, leased=False):
            places = self.tensors.allocate(name, [size], [room])
        if places is None:
            return None
        (place,) = places
        keeper = self.stand_in(request, 0)
        self._requests[name], self._keepers[name] = request, keeper
        if found is not None:
            self._allocations[name] = [found[0]]
        accepted = self._store(place).kv.accept(keeper, blocks, self._consumer.kv.all_groups)
        assert accepted, "it was counted"
        return place

    async def _give_up_one(self, leaving: set[int], *, leased: bool) -> bool:
        """The oldest copy of who is on the device and stays, in a lease or in DRAM."""
        for name in self.tensors:
            in_lease = self.tensors.resolve(name)[0] != DRAM
            if in_lease == leased and self._here(name) and name not in leaving:
                await self._forget([self._requests[name]])
                return True
        return False

    def _blocks(self, request: Request) -> int:
        return self._consumer.kv.blocks_for(request.computed_tokens)

    # The control loop, and deaths

    async def tend(self, needed: Sequence[Hashable]) -> None:
        paged = [name for name, _ in self.tensors.shards_in(DRAM) if not self._here(name)]
        if self._variant.all_or_nothing and paged:
            while await self._give_up_one(set(), leased=True):  # who takes back holds nothing
                pass
        await super().tend(needed)

    async def _migrate(self, move: Move) -> None:
        name = move.shard.tensor
        if name in self.tensors and self._here(name):
            await self._forget([self._requests[name]])
            return
        await super()._migrate(move)

    def lose(self, lease: str) -> None:
        lost = [name for name, _ in self.tensors.shards_in(Place(lease))]
        super().lose(lease)
        for name in lost:
            if name in self._keepers:
                self._cluster.directory.forget(self._keepers.pop(name))

    # Parts

    def _keeper(self, name: Hashable) -> Request:
        return self._keepers.get(name) or super()._keeper(name)

    def _here(self, name: Hashable) -> bool:
        """A request that is on the device, and its copy at best a former state of it."""
        return name in self._consumer.kv.held

    async def _free_tensor(self, name: Hashable) -> None:
        keeper = self._keepers.pop(name, None)
        if keeper is not None:
            self._store(self.tensors.resolve(name)[0]).kv.release(keeper)
            self._cluster.directory.forget(keeper)
        await super()._free_tensor(name)
