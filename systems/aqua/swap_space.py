"""AQUA-LIB of a consumer (sections 6 and 7): paged KV in a neighbour's memory, or in host DRAM.

Where shards lie is `tensors.py`'s to say and what is moved by the control loop `migration.py`'s;
here are the copies around these calls. A lender that dies takes the KV in its leases with it: those
requests are evicted, and computed again.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count

from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_store import KvStore
from harness.errors import InstanceLost, RunError
from harness.request import Request
from systems.aqua.config import MigrationVariant
from systems.aqua.leases import Leases
from systems.aqua.migration import Move, evacuations, returns
from systems.aqua.prefix_cache import PrefixTensor
from systems.aqua.tensors import DRAM, Place, Tensors


class SwapSpace:
    """`leases`: None: there is DRAM alone. `chunk_bytes`: of a copy's messages, `issue_s`
    apart at least; None: gathered."""

    def __init__(
        self, cluster: ElasticCluster, consumer: ElasticInstance, leases: Leases | None,
        dram: KvStore, variant: MigrationVariant, chunk_bytes: int | None, issue_s: float,
    ) -> None:  # fmt: skip
        self._cluster, self._consumer, self._leases = cluster, consumer, leases
        self._dram, self._variant = dram, variant
        self._chunk_bytes, self._issue_s = chunk_bytes, issue_s
        self.tensors = Tensors(1, dram.kv.num_pages * dram.page_bytes)
        self._requests: dict[Hashable, Request] = {}  # those with a tensor
        self._allocations: dict[Hashable, list[str]] = {}  # of those in a lease
        # Of requests that never run, whose blocks copies are; the directory knows all instances'.
        number = cluster.instances.index(consumer)
        self._numbers = count(-1 - number, -len(cluster.instances))
        self._layers = range(consumer.model.num_layers)

    def in_dram(self) -> list[bool]:
        """Of each tensor of paged prompts."""
        names = [name for name in self.tensors if not isinstance(name, PrefixTensor)]
        return [self.tensors.in_dram(name) for name in names]

    # Paging, at a slice's start

    async def page_out(self, requests: Sequence[Request]) -> None:
        """Copies of one place go together. A request without room anywhere is evicted."""
        by_place: dict[Place, list[Request]] = {}
        for request in requests:
            place = await self._allocate(request)
            if place is None:
                self._consumer.evict(request)
            else:
                by_place.setdefault(place, []).append(request)
        for place, group in by_place.items():
            if not await self._move(group, None, place, f"page out to {said(place)}"):
                await self._forget(group)

    async def page_in(self, requests: Sequence[Request]) -> None:
        by_place: dict[Place, list[Request]] = {}
        for request in requests:
            if request.request_id in self.tensors:  # else lost with its lender, just before
                (place,) = self.tensors.resolve(request.request_id)
                by_place.setdefault(place, []).append(request)
        for place, group in by_place.items():
            if await self._move(group, place, None, f"page in from {said(place)}"):
                await self._forget(group)

    async def drop(self, request: Request) -> None:
        """Gives up what is paged out of `request`, if anything is."""
        if request.request_id in self.tensors:
            await self._forget([request])

    # Cached prefixes: copies, whose blocks are those of a request that never runs

    def stand_in(self, request: Request, tokens: int) -> Request:
        """Such a request: none of the schedule has its number."""
        return Request(
            next(self._numbers), request.arrival_s, request.model, tokens, 1, computed_tokens=tokens
        )

    def num_bytes(self, blocks: int) -> int:
        return blocks * len(self._consumer.kv.all_groups) * self._consumer.page_bytes

    async def room_for(self, blocks: int) -> tuple[tuple[str, str] | None, list[dict[str, int]]]:
        """In a lease: the allocation's name and its lease; and as `Tensors.allocate` has rooms."""
        size = self.num_bytes(blocks)
        found = await self._room(size)
        return found, [{} if found is None else {found[1]: size}]

    async def copy_out(
        self, name: PrefixTensor, copy: Request, request: Request, blocks: int, place: Place,
        found: tuple[str, str] | None,
    ) -> None:  # fmt: skip
        """To `name`, which is allocated, the first `blocks` of `request`, which stay."""
        self._requests[name] = copy
        if found is not None:
            self._allocations[name] = [found[0]]
        store = self._store(place)
        room = store.kv.accept(copy, blocks, self._consumer.kv.all_groups)
        assert room, "it was counted"
        await self._copy(request, copy, range(blocks), None, place)

    async def copy_in(self, name: PrefixTensor, copy: Request, request: Request) -> bool:
        """What is computed of `request`, to blocks of its own. False: the copy was lost with its
        lender."""
        (place,) = self.tensors.resolve(name)
        grown = self._consumer.kv.grow(request, request.computed_tokens)
        assert grown, "who is chosen has room"
        blocks = range(self._consumer.kv.held[request.request_id])
        if await self._copy(copy, request, blocks, place, None):
            return True
        self._consumer.kv.release(request)
        return False

    async def drop_copy(self, name: PrefixTensor, copy: Request) -> None:
        """Nothing where it was lost."""
        if name in self.tensors:
            self._store(self.tensors.resolve(name)[0]).kv.release(copy)
            await self._free_tensor(name)

    async def _copy(
        self, request: Request, to: Request, blocks: range, source: Place | None,
        target: Place | None,
    ) -> bool:  # fmt: skip
        """As `_move`."""
        ends = [self._consumer if p is None else self._store(p) for p in (source, target)]
        (place,) = [each for each in (source, target) if each is not None]
        purpose = f"prefix {'in from' if target is None else 'out to'} {said(place)}"
        try:
            await self._cluster.copy_kv(
                request, blocks, self._layers, ends[0], ends[1], purpose=purpose, to=to
            )
        except InstanceLost:
            self._consumer.check_alive()
            if place.lease is not None:
                self.lose(place.lease)
            return False
        return True

    # The control loop, every n iterations

    async def tend(self, needed: Sequence[Hashable]) -> None:
        """Out of overdrawn leases, and back into those with room. `needed`: in order of need."""
        if self._leases is None:
            return
        overdrawn = await self._leases.overdrawn_bytes(self._consumer.name)
        leaving = evacuations(
            self.tensors, overdrawn, needed, whole_leases=self._variant.whole_leases
        )
        for move in leaving:
            await self._migrate(move)
        coming = returns(
            self.tensors, [await self._leases.free_bytes(self._consumer.name)], needed,
            all_or_nothing=self._variant.all_or_nothing,
        )  # fmt: skip
        for move in coming:
            await self._migrate(move)

    async def _migrate(self, move: Move) -> None:
        name = move.shard.tensor
        if name not in self.tensors:
            return  # lost with its lender, just before
        request, (source,) = self._requests[name], self.tensors.resolve(name)
        new: tuple[str, str] | None = None
        if move.to != DRAM:
            new = await self._room(move.num_bytes)
            if new is None:
                return
        target = DRAM if new is None else Place(new[1])
        left = self.tensors.dram_bytes - self.tensors.bytes_in(DRAM)
        if target == DRAM and move.num_bytes > left:
            if isinstance(name, PrefixTensor):
                await self.drop_copy(name, request)
                return
            self._consumer.evict(request)
            await self._forget([request])
            return
        purpose = f"migrate to {said(target)}"
        if not await self._move([self._keeper(name)], source, target, purpose):
            return
        moved = self.tensors.migrate(move.shard, target)
        assert moved, "DRAM has room"
        for old in self._allocations.pop(name, ()):
            await self._free(old)
        if new is not None:
            self._allocations[name] = [new[0]]

    # Deaths

    def lose(self, lease: str) -> None:
        """The lender of `lease` is dead: what lay there is to be computed again."""
        for name in self.tensors.lose(lease):
            request = self._requests.pop(name)
            self._allocations.pop(name, None)
            if isinstance(name, PrefixTensor):
                continue
            if name not in self._consumer.kv.held:  # else it was on its way out, and is still here
                self._consumer.evict(request)

    # Parts

    async def _allocate(self, request: Request) -> Place | None:
        kv = self._consumer.kv
        pages = kv.held[request.request_id] * len(kv.all_groups)
        num_bytes = pages * self._consumer.page_bytes
        found = await self._room(num_bytes)
        room = {} if found is None else {found[1]: num_bytes}
        places = self.tensors.allocate(request.request_id, [num_bytes], [room])
        if places is None:
            return None
        self._requests[request.request_id] = request
        if found is not None:
            self._allocations[request.request_id] = [found[0]]
        return places[0]

    async def _room(self, num_bytes: int) -> tuple[str, str] | None:
        if self._leases is None:
            return None
        return await self._leases.allocate(self._consumer.name, num_bytes)

    async def _free(self, allocation: str) -> None:
        assert self._leases is not None, "allocations are in leases"
        await self._leases.free(self._consumer.name, allocation)

    async def _forget(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.request_id in self.tensors:
                await self._free_tensor(request.request_id)

    async def _free_tensor(self, name: Hashable) -> None:
        self.tensors.free(name)
        del self._requests[name]
        for allocation in self._allocations.pop(name, ()):
            await self._free(allocation)

    def _keeper(self, name: Hashable) -> Request:
        """Whose the blocks of a tensor are, where it lies."""
        return self._requests[name]

    def _store(self, place: Place) -> KvStore:
        if place.lease is None:
            return self._dram
        assert self._leases is not None
        return self._leases.stores[place.lease]

    async def _move(
        self, requests: Sequence[Request], source: Place | None, target: Place | None, purpose: str
    ) -> bool:
        """None: the consumer's device. False: the lender died, and `lose` has seen to it."""
        ends = [self._consumer if p is None else self._store(p) for p in (source, target)]
        try:
            if source is None:
                await self._stage(requests, "gather")
            moved = await self._cluster.move_kv(
                requests, self._layers, ends[0], ends[1], self._sending(purpose)
            )
        except InstanceLost:
            self._consumer.check_alive()
            for place in (source, target):
                if place is not None and place.lease is not None:
                    self.lose(place.lease)
            return False
        if moved and target is None:
            await self._stage(requests, "scatter")
        if not moved:
            raise RunError(f"{purpose}: no room for KV that was counted to have some")
        return True

    def _sending(self, purpose: str) -> Sending:
        issue_s = None if self._chunk_bytes is None else self._issue_s
        return Sending(purpose, chunk_bytes=self._chunk_bytes, issue_s=issue_s)

    async def _stage(self, requests: Sequence[Request], what: str) -> None:
        held = self._consumer.kv.held
        await self._stage_blocks(sum(held.get(r.request_id, 0) for r in requests), what)

    async def _stage_blocks(self, blocks: int, what: str) -> None:
        """The pass through the staging tensor of gathered copies."""
        if self._chunk_bytes is None and blocks:
            await self._cluster.stage(self._consumer.memory, self.num_bytes(blocks), what)


def said(place: Place) -> str:
    return "DRAM" if place.lease is None else "lease"
