"""AQUA-LIB of a consumer (sections 6 and 7): KV in a neighbour's memory, or in host DRAM.

`tensors.py` says what there is and where, `migration.py` what the control loop moves, `leases.py`
asks the coordinator for room, `copies.py` moves the bytes; here is their order. A lender that dies
takes the KV in its leases with it: those requests are evicted, and computed again.

With `dirty_only` a copy stays when its request is paged in. It is given up when its request ends,
when its lease is asked back or lost, when others need its room, and where it lies in DRAM and a
lease has room for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from itertools import count

from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_region import KvStore
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.copies import PagingCopies, block_bytes, place_name
from systems.aqua.leases import Allocated, Leases
from systems.aqua.migration import evacuations, returns
from systems.aqua.shard_leases import ShardLeases
from systems.aqua.tensors import Tensor, Tensors


class SwapSpace:
    """The places of one consumer's paged KV. `dram`: the consumer's part of its node's DRAM."""

    def __init__(
        self, config: AquaConfig, cluster: ElasticCluster, consumer: ElasticInstance,
        leases: Leases | ShardLeases, dram: KvStore,
    ) -> None:  # fmt: skip
        self.cluster, self.consumer = cluster, consumer
        self.leases, self._dram = leases, dram
        self.tensors = Tensors(dram.kv.num_pages * dram.page_bytes)
        self._dirty_only = config.own.scheduler.dirty_only
        self._migration = config.own.migration
        self.copies = PagingCopies(config, cluster, consumer, self.store, self.lose)
        # Numbers of copies' owners, which never run; the directory knows all instances' requests.
        number = cluster.instances.index(consumer)
        self._numbers = count(-1 - number, -len(cluster.instances))
        self.layers = range(consumer.model.num_layers)
        self.on_evict: Callable[[Request], None] = lambda request: None  # who is to know

    def in_dram(self) -> list[bool]:
        """Of each place in which tensors of paged prompts lie, whether it is DRAM."""
        return [
            lease is None
            for lease, those in self.tensors.places.items()
            if any(each.request is not None and not self._here(each) for each in those.values())
        ]

    # Paging, at a slice's start

    async def page_out(self, requests: Sequence[Request]) -> Request | None:
        """Pages requests out; copies of one place go together. If one has no room anywhere, none
        of them leaves: returns it."""
        leaving = {request.request_id for request in requests}
        tensors, new = list[Tensor](), list[Tensor]()
        for request in requests:
            tensor = await self._room_in_copy(request)
            if tensor is None:
                await self.drop(request)
                tensor = await self._new_tensor(request, leaving)
                if tensor is None:
                    for each in new:
                        await self._free(each)
                    return request
                new.append(tensor)
            tensors.append(tensor)
        for lease, group in by_lease(tensors).items():
            await self.copies.page_out(group, lease)
        return None

    async def page_in(self, requests: Sequence[Request]) -> None:
        # Else they were lost with their lender, just before.
        paged = [self.tensors[r.request_id] for r in requests if r.request_id in self.tensors]
        for lease, group in by_lease(paged).items():
            if await self.copies.page_in(group, lease) and not self._dirty_only:
                for tensor in group:
                    await self._free(tensor)

    async def drop(self, request: Request) -> None:
        """Gives up what is paged out of `request`, if anything is."""
        if request.request_id in self.tensors:
            await self._free(self.tensors[request.request_id])

    async def drop_all(self) -> None:
        for tensor in list(self.tensors):
            await self._free(tensor)

    # The control loop, every n iterations

    async def tend(self, needed: Callable[[], Sequence[Hashable]]) -> None:
        """Moves tensors out of overdrawn leases, and back into those with room. `needed`: names of
        tensors, in order of need; asked only if some may move."""
        if self.leases.coordinator is None or not self.tensors.places:
            return
        own, name = self._migration, self.consumer.name
        if own.all_or_nothing and not all(map(self._here, self.tensors.in_place(None))):
            while await self._give_up_one((), leased=True):  # who takes back holds nothing
                pass
        overdrawn = await self.leases.overdrawn_bytes(name)
        rank, whole = needed() if overdrawn else (), own.whole_leases
        for tensor in evacuations(self.tensors, overdrawn, rank, whole_leases=whole):
            await self._migrate(tensor, to_lease=False)
        if None in self.tensors.places:
            free = await self.leases.free_bytes(name)
            coming = returns(self.tensors, free, needed(), all_or_nothing=own.all_or_nothing)
            for tensor in coming:
                await self._migrate(tensor, to_lease=True)

    async def _migrate(self, tensor: Tensor, *, to_lease: bool) -> None:
        if tensor.name not in self.tensors:
            return  # lost with its lender, just before
        if self._here(tensor):
            await self._free(tensor)
            return
        found = await self.allocate(tensor.num_bytes) if to_lease else None
        if to_lease and found is None:
            return
        lease = None if found is None else found.lease
        if not self.tensors.fits(tensor.num_bytes, lease):
            if tensor.request is not None:
                self.evict(tensor.request)
            await self._free(tensor)
            return
        source, target, purpose = self.store(tensor.lease), self.store(lease), place_name(lease)
        gone = tensor.lease or lease
        if await self.copies.move([tensor], source, target, gone, f"migrate to {purpose}"):
            await self.moved(tensor, found)

    async def moved(self, tensor: Tensor, to: Allocated | None) -> None:
        """Notes that the tensor lies in a lease now, or, with `to` None, in DRAM."""
        self.tensors.move(tensor, None if to is None else to.lease)
        await self.free_allocations(tensor)
        tensor.allocations = [] if to is None else [to.name]

    # Deaths

    def lose(self, lease: str) -> None:
        """Gives up what lay in `lease`, whose lender is dead: it is to be computed again."""
        for tensor in self.tensors.lose(lease):
            self.leases.forget(tensor.allocations)
            if tensor.block_owner is not tensor.request:
                self.cluster.directory.forget(tensor.block_owner)
            if tensor.request is not None and not self._here(tensor):
                self.evict(tensor.request)

    def evict(self, request: Request) -> None:
        """The request is to be computed again."""
        self.consumer.evict(request)
        self.on_evict(request)

    # Room

    async def allocate(self, num_bytes: int) -> Allocated | None:
        """Allocates bytes in a lease; None if none has room."""
        return await self.leases.allocate(self.consumer.name, num_bytes)

    async def _room_in_copy(self, request: Request) -> Tensor | None:
        """The request's copy, once that has room for all of it. None if there is no copy, it has no
        room, or there is a better place."""
        if request.request_id not in self.tensors:
            return None
        tensor, blocks = self.tensors[request.request_id], self._num_blocks(request)
        if tensor.lease is None:
            free = await self.leases.free_bytes(self.consumer.name)
            if max(free.values(), default=0) >= self.num_bytes(blocks):
                return None
        store = self.store(tensor.lease)
        more = blocks - store.kv.held[tensor.block_owner.request_id]
        if more > 0:
            if tensor.lease is not None:
                found = await self.allocate(self.num_bytes(more))
                if found is None:
                    return None
                if found.lease != tensor.lease:
                    await self.leases.free(self.consumer.name, found.name)
                    return None
                tensor.allocations.append(found.name)
            elif not self.tensors.fits(self.num_bytes(more), None):
                return None
            self.tensors.grow(tensor, self.num_bytes(more))
            grown = store.kv.grow(tensor.block_owner, request.computed_tokens)
            assert grown, "it was counted"
        return tensor

    async def _new_tensor(self, request: Request, leaving: Collection[int]) -> Tensor | None:
        """A new tensor for the request; None if no place has room, though all copies but those of
        `leaving` were given up."""
        owner = self.copy_owner(request, 0) if self._dirty_only else request
        size = self.num_bytes(self._num_blocks(request))
        tensor = Tensor(request.request_id, size, owner, request)
        while not await self._in_lease(tensor) and await self._give_up_one(leaving, leased=True):
            pass
        while not self._add(tensor):
            if not await self._give_up_one(leaving, leased=False):
                return None
        return tensor

    async def lay(self, tensor: Tensor) -> bool:
        """Lays the tensor in a lease with room for it, or in DRAM. False if that has no room
        either."""
        await self._in_lease(tensor)
        return self._add(tensor)

    async def _in_lease(self, tensor: Tensor) -> bool:
        found = await self.allocate(tensor.num_bytes)
        if found is not None:
            tensor.lease, tensor.allocations = found.lease, [found.name]
        return found is not None

    def _add(self, tensor: Tensor) -> bool:
        if not self.tensors.add(tensor):
            return False
        if tensor.block_owner is not tensor.request:
            blocks, kv = tensor.num_bytes // self.num_bytes(1), self.store(tensor.lease).kv
            accepted = kv.accept(tensor.block_owner, blocks, self.consumer.kv.all_groups)
            assert accepted, "it was counted"
        return True

    async def _give_up_one(self, leaving: Collection[int], *, leased: bool) -> bool:
        """Gives up the oldest copy, in a lease or in DRAM, of a request that is on the device and
        stays. False if there is none."""
        if not self._dirty_only:
            return False  # no copy stays
        for tensor in self.tensors:
            in_lease = tensor.lease is not None
            if in_lease == leased and self._here(tensor) and tensor.name not in leaving:
                await self._free(tensor)
                return True
        return False

    async def _free(self, tensor: Tensor) -> None:
        if tensor.block_owner is not tensor.request:
            self.store(tensor.lease).kv.release(tensor.block_owner)
            self.cluster.directory.forget(tensor.block_owner)
        self.tensors.free(tensor.name)
        await self.free_allocations(tensor)

    async def free_allocations(self, tensor: Tensor) -> None:
        for allocation in tensor.allocations:
            await self.leases.free(self.consumer.name, allocation)

    # Parts

    def store(self, lease: str | None) -> KvStore:
        return self._dram if lease is None else self.leases.stores[lease]

    def copy_owner(self, request: Request, tokens: int) -> Request:
        """A request with a number that none of the schedule has. `tokens`: those that its copy
        has."""
        return Request(
            next(self._numbers), request.arrival_s, request.model, tokens, 1, computed_tokens=tokens
        )

    def _here(self, tensor: Tensor) -> bool:
        """Whether the tensor's request is on the device; the tensor is then at best a former state
        of it."""
        return tensor.name in self.consumer.kv.held

    def _num_blocks(self, request: Request) -> int:
        return self.consumer.kv.blocks_for(request.computed_tokens)

    def num_bytes(self, blocks: int) -> int:
        return blocks * block_bytes(self.consumer)


def by_lease(tensors: Iterable[Tensor]) -> dict[str | None, list[Tensor]]:
    found: dict[str | None, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.lease, []).append(tensor)
    return found
