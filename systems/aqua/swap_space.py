"""AQUA-LIB of a consumer (sections 6 and 7): KV in a neighbour's memory, or in host DRAM.

`tensors.py` says what there is and where, `migration.py` what the control loop moves, `leases.py`
asks the coordinator for room; here are the copies around these calls. A lender that dies takes the
KV in its leases with it: those requests are evicted, and computed again.

With `dirty_only`, the public code's way, a copy stays when its request is paged in, so that the
next page-out copies only the blocks that were written since. The copy of who is on the device is
given up when its request ends, when its lease is asked back or lost, when others need its room, and
where it lies in DRAM and a lease has room for all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Hashable, Iterable, Sequence
from itertools import count

from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Holder
from harness.elastic.kv_store import KvStore
from harness.elastic.page_tables import KvCopy
from harness.errors import InstanceLost, RunError
from harness.request import Request
from systems.aqua.config import AquaConfig
from systems.aqua.leases import Allocated, Leases
from systems.aqua.migration import evacuations, returns
from systems.aqua.paging import blocks_out
from systems.aqua.tensors import Tensor, Tensors


class SwapSpace:
    """The places of one consumer's paged KV. `dram`: the consumer's part of its node's DRAM."""

    def __init__(
        self, config: AquaConfig, cluster: ElasticCluster, consumer: ElasticInstance,
        leases: Leases, dram: KvStore,
    ) -> None:  # fmt: skip
        self.cluster, self.consumer = cluster, consumer
        self.leases, self._dram = leases, dram
        self.tensors = Tensors(dram.kv.num_pages * dram.page_bytes)
        layout = consumer.layout
        self._dirty_only = config.own.scheduler.dirty_only
        self._migration = config.own.migration
        self._by_block = config.copies == "by_block"
        self._chunk_bytes = (
            layout.page_bytes // (2 * layout.page_layers) if self._by_block else None
        )
        self._issue_s = config.copy_issue_s if self._by_block else None
        # Numbers of stand-ins, which never run; the directory knows all instances' requests.
        number = cluster.instances.index(consumer)
        self._numbers = count(-1 - number, -len(cluster.instances))
        self.layers = range(consumer.model.num_layers)

    def in_dram(self) -> list[bool]:
        """Whether each tensor of paged prompts lies in DRAM, oldest first."""
        paged = [each for each in self.tensors if each.request is not None]
        return [each.lease is None for each in paged if not self._here(each)]

    # Paging, at a slice's start

    async def page_out(self, requests: Sequence[Request]) -> None:
        """Pages requests out; copies of one place go together. A request without room anywhere is
        evicted."""
        leaving = {request.request_id for request in requests}
        tensors = []
        for request in requests:
            tensor = await self._room_in_copy(request)
            if tensor is None:
                await self.drop(request)
                tensor = await self._new_tensor(request, leaving)
            if tensor is None:
                self.consumer.evict(request)
            else:
                tensors.append(tensor)
        for lease, group in by_lease(tensors).items():
            purpose = f"page out to {said(lease)}"
            if self._dirty_only:
                await self._save(group, lease, purpose)
            else:
                await self._stage(self._num_held(group), "gather")
                await self._move(group, self.consumer, self.store(lease), lease, purpose)

    async def page_in(self, requests: Sequence[Request]) -> None:
        # Else they were lost with their lender, just before.
        paged = [self.tensors[r.request_id] for r in requests if r.request_id in self.tensors]
        for lease, group in by_lease(paged).items():
            purpose = f"page in from {said(lease)}"
            if self._dirty_only:
                there = await self._load(group, lease, purpose)
            else:
                there = await self._move(group, self.store(lease), self.consumer, lease, purpose)
            if there:
                await self._stage(self._num_held(group), "scatter")
            if there and not self._dirty_only:
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

    async def tend(self, needed: Sequence[Hashable]) -> None:
        """Moves tensors out of overdrawn leases, and back into those with room. `needed`: names of
        tensors, in order of need."""
        if self.leases.coordinator is None:
            return
        own, name = self._migration, self.consumer.name
        if own.all_or_nothing and not all(map(self._here, self.tensors.in_place(None))):
            while await self._give_up_one((), leased=True):  # who takes back holds nothing
                pass
        overdrawn = await self.leases.overdrawn_bytes(name)
        for tensor in evacuations(self.tensors, overdrawn, needed, whole_leases=own.whole_leases):
            await self._migrate(tensor, to_lease=False)
        free = await self.leases.free_bytes(name)
        for tensor in returns(self.tensors, free, needed, all_or_nothing=own.all_or_nothing):
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
                self.consumer.evict(tensor.request)
            await self._free(tensor)
            return
        source, target, purpose = self.store(tensor.lease), self.store(lease), said(lease)
        gone = tensor.lease or lease
        if await self._move([tensor], source, target, gone, f"migrate to {purpose}"):
            await self.moved(tensor, found)

    async def moved(self, tensor: Tensor, to: Allocated | None) -> None:
        """Notes that the tensor lies in a lease now, or, with `to` None, in DRAM."""
        tensor.lease = None if to is None else to.lease
        await self.free_allocations(tensor)
        tensor.allocations = [] if to is None else [to.name]

    # Deaths

    def lose(self, lease: str) -> None:
        """Gives up what lay in `lease`, whose lender is dead: it is to be computed again."""
        for tensor in self.tensors.lose(lease):
            if tensor.keeper is not tensor.request:
                self.cluster.directory.forget(tensor.keeper)
            if tensor.request is not None and not self._here(tensor):
                self.consumer.evict(tensor.request)

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
        more = blocks - store.kv.held[tensor.keeper.request_id]
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
            tensor.num_bytes += self.num_bytes(more)
            grown = store.kv.grow(tensor.keeper, request.computed_tokens)
            assert grown, "it was counted"
        return tensor

    async def _new_tensor(self, request: Request, leaving: Collection[int]) -> Tensor | None:
        """A new tensor for the request; None if no place has room, though all copies but those of
        `leaving` were given up."""
        keeper = self.stand_in(request, 0) if self._dirty_only else request
        size = self.num_bytes(self._num_blocks(request))
        tensor = Tensor(request.request_id, size, keeper, request)
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
        if tensor.keeper is not tensor.request:
            blocks, kv = tensor.num_bytes // self.num_bytes(1), self.store(tensor.lease).kv
            accepted = kv.accept(tensor.keeper, blocks, self.consumer.kv.all_groups)
            assert accepted, "it was counted"
        return True

    async def _give_up_one(self, leaving: Collection[int], *, leased: bool) -> bool:
        """Gives up the oldest copy, in a lease or in DRAM, of a request that is on the device and
        stays. False if there is none."""
        for tensor in self.tensors:
            in_lease = tensor.lease is not None
            if in_lease == leased and self._here(tensor) and tensor.name not in leaving:
                await self._free(tensor)
                return True
        return False

    async def _free(self, tensor: Tensor) -> None:
        if tensor.keeper is not tensor.request:
            self.store(tensor.lease).kv.release(tensor.keeper)
            self.cluster.directory.forget(tensor.keeper)
        self.tensors.free(tensor.name)
        await self.free_allocations(tensor)

    async def free_allocations(self, tensor: Tensor) -> None:
        for allocation in tensor.allocations:
            await self.leases.free(self.consumer.name, allocation)

    # Copies. False: the lender died, and `lose` has seen to it

    async def _move(
        self, tensors: Sequence[Tensor], source: Holder, target: Holder, lease: str | None,
        purpose: str,
    ) -> bool:  # fmt: skip
        """Moves the tensors' KV to `target`; it is nowhere else then."""
        moving = self.cluster.move_kv(
            [tensor.keeper for tensor in tensors],
            self.layers,
            source,
            target,
            self._sending(purpose),
        )
        return await self.done(moving, lease, purpose)

    async def _save(self, tensors: Sequence[Tensor], lease: str | None, purpose: str) -> None:
        """Saves what was written since the last time. A request whose lender dies meanwhile stays
        on the device."""
        kv, copies = self.consumer.kv, []
        for tensor in tensors:
            request, keeper = tensor.paged, tensor.keeper
            blocks = blocks_out(request.computed_tokens, keeper.computed_tokens, kv.block_tokens)
            copies.append(KvCopy(request, keeper, blocks))
        await self._stage(sum(len(each.blocks) for each in copies), "gather")
        saving = self.cluster.save_kv(
            copies, self.layers, self.consumer, self.store(lease),
            of=[each.request for each in copies], sending=self._sending(purpose),
        )  # fmt: skip
        if await self.done(saving, lease, purpose):
            for request, keeper, _ in copies:
                keeper.computed_tokens = request.computed_tokens
                self.cluster.directory.forget(request)
                kv.release(request)

    async def _load(self, tensors: Sequence[Tensor], lease: str | None, purpose: str) -> bool:
        """Loads the tensors' KV onto the device. Copies stay."""
        kv, copies = self.consumer.kv, []
        for tensor in tensors:
            request = tensor.paged
            if not kv.grow(request, request.computed_tokens):
                raise RunError(f"request {request.request_id} has no room within its slice")
            copies.append(KvCopy(tensor.keeper, request, range(kv.held[request.request_id])))
        coming = [each.to for each in copies]
        loading = self.cluster.save_kv(
            copies, self.layers, self.store(lease), self.consumer, of=coming,
            sending=self._sending(purpose),
        )  # fmt: skip
        return await self.done(loading, lease, purpose, coming)

    def _sending(self, purpose: str) -> Sending:
        return Sending(purpose, chunk_bytes=self._chunk_bytes, issue_s=self._issue_s)

    async def done(
        self, copying: Awaitable[bool | None], lease: str | None, purpose: str,
        coming: Sequence[Request] = (),
    ) -> bool:  # fmt: skip
        """Waits for a copy; False if the lender died. `coming`: requests of which nothing is on the
        device then."""
        try:
            if await copying is False:
                raise RunError(f"{purpose}: no room for KV that was counted to have some")
        except InstanceLost:
            self.consumer.check_alive()
            for request in coming:
                self.consumer.kv.release(request)
            if lease is not None:
                self.lose(lease)
            return False
        return True

    async def _stage(self, num_blocks: int, what: str) -> None:
        """Passes gathered copies through the staging tensor."""
        if not self._by_block and num_blocks:
            await self.cluster.stage(self.consumer.memory, self.num_bytes(num_blocks), what)

    # Parts

    def store(self, lease: str | None) -> KvStore:
        return self._dram if lease is None else self.leases.stores[lease]

    def stand_in(self, request: Request, tokens: int) -> Request:
        """A request with a number that none of the schedule has. `tokens`: those that its copy
        has."""
        return Request(
            next(self._numbers), request.arrival_s, request.model, tokens, 1, computed_tokens=tokens
        )

    def _here(self, tensor: Tensor) -> bool:
        """Whether the tensor's request is on the device; the tensor is then at best a former state
        of it."""
        return tensor.name in self.consumer.kv.held

    def _num_held(self, tensors: Iterable[Tensor]) -> int:
        return sum(self.consumer.kv.held.get(each.paged.request_id, 0) for each in tensors)

    def _num_blocks(self, request: Request) -> int:
        return self.consumer.kv.blocks_for(request.computed_tokens)

    def num_bytes(self, blocks: int) -> int:
        return blocks * len(self.consumer.kv.all_groups) * self.consumer.page_bytes


def by_lease(tensors: Iterable[Tensor]) -> dict[str | None, list[Tensor]]:
    found: dict[str | None, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.lease, []).append(tensor)
    return found


def said(lease: str | None) -> str:
    return "DRAM" if lease is None else "lease"
