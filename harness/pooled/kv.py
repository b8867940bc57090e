"""The KV of a pooled instance's requests: on its device, in its node's host cache, and between.

Aegaeon §5.3, for every engine, over a `Device` that moves the bytes:

  ① a batch runs only with all of its requests' KV on the device;
  ② KV is read from where it was copied to only once that copy is complete;
  ③ blocks are given out only once no transfer touches them.

When its device dies, all that waits for it waits for ever. `on_lost` tells the system, which takes
its requests elsewhere. Host memory, with the KV that lies there, stays, unless the node dies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from harness.clock import Event
from harness.device.memory import KvShape
from harness.errors import InstanceLost, RunError
from harness.pooled.blocks import SlabPool, device_shape, host_shape
from harness.pooled.device import Device, KvCopy
from harness.pooled.host import Host, SharedByPool, SwappedKv
from harness.pooled.slab import Pool, Run, SlabAllocator
from harness.request import Request

SAMPLE_S = 1.0
NOTICE_S = 20.0  # as long as a node's agent may take to answer


class Swap:
    """A swap of a request's KV: `here`, its runs on the device; `asked_s`, `begun_s`: when it was
    asked for, and when its bytes began to move."""

    def __init__(
        self, request: Request, swapped: SwappedKv, here: list[Run], on_done: Callable[[], None],
        asked_s: float,
    ) -> None:  # fmt: skip
        self.request, self.swapped, self.here, self.on_done = request, swapped, here, on_done
        self.asked_s = self.begun_s = asked_s


class PooledKv:
    """`on_lost`: called once it is known that the device has died, with the requests whose KV was
    on its way from it to host memory or, where its node has died, is in that node's memory; None:
    that ends the run. `lost`: that is known. `on_kv_lost`: called for a request whose KV was on its
    way to here from a node that has died."""

    def __init__(self, device: Device, host: Host, shared: SharedByPool) -> None:
        self.name, self.node, self.host = device.name, device.node, host
        self.models, plan = shared.models, shared.plan
        self._device, self._swapped = device, shared.swapped
        self._block_tokens = plan.block_tokens
        self._loop, self._recorder = shared.loop, shared.recorder
        self._slabs = SlabAllocator(plan.kv_bytes, plan.slab_bytes)
        self._pools: dict[KvShape, SlabPool] = {}
        self._pool_of: dict[str, SlabPool] = {}  # model -> of its shape
        self._host_pools: dict[str, Pool] = {}  # model -> of its shape
        self._claimed: dict[int, list[Run]] = {}  # request_id -> room in `host` for its swap-out
        self._refused: tuple[Request, float] | None = None  # whom `claim` refuses, since when
        self._leaving: dict[int, SwappedKv] = {}  # request_id -> its swap-out under way
        self._arriving: dict[int, tuple[SwappedKv, Event]] = {}  # … its swap-in under way
        self.on_lost: Callable[[set[int]], None] | None = None
        self.on_kv_lost: Callable[[Request], None] | None = None
        self.lost = False
        device.on_lost = self._lose

    def kv(self, model: str) -> SlabPool:
        """The KV blocks of `model`'s shape on this device; other shapes compete for the room."""
        pool = self._pool_of.get(model)
        if pool is None:
            shape = device_shape(self.models[model], self._block_tokens)
            if shape not in self._pools:
                self._pools[shape] = SlabPool(self._slabs, shape)
            pool = self._pool_of[model] = self._pools[shape]
        return pool

    def _host_pool(self, model: str) -> Pool:
        """The same in the node's host cache."""
        pool = self._host_pools.get(model)
        if pool is None:
            shape = host_shape(self.models[model], self._block_tokens)
            pool = self._host_pools[model] = self.host.slabs.pool(shape)
        return pool

    def holds(self, request: Request) -> bool:
        """Whether all of the request's KV is on this device, ready to be read."""
        here = request.request_id in self.kv(request.model).held
        return here and request.request_id not in self._arriving

    def host_has_room(self, prompt: Request) -> bool:
        """Whether the node's host cache has room for all KV of a request that holds none yet."""
        num_blocks = self.kv(prompt.model).blocks_for(prompt.known_tokens)
        return self.host.has_room(self._host_pool(prompt.model), num_blocks)

    def claim(self, requests: Sequence[Request]) -> bool:
        """Takes room in the node's host cache for the KV that all of `requests` have here, whoever
        else waits for room; `swap_out` uses it. False: there is too little, and none is taken.
        Raises OutOfMemory where one of them could not lie there even alone."""
        taken = dict[int, list[Run]]()
        for request in requests:
            pool, num_blocks = self._host_need(request)
            if num_blocks > self.host.slabs.room(pool):
                self.host.check_size(pool, num_blocks)
                for runs in taken.values():
                    self.host.slabs.free(runs)
                if self._refused is None:
                    self._refused = request, self._loop.now
                return False
            taken[request.request_id] = self.host.slabs.alloc(pool, num_blocks)
        self._claimed |= taken
        if self._refused is not None:
            self._log_full(*self._refused)
            self._refused = None
        return True

    async def claim_in_turn(self, request: Request) -> None:
        """Waits for room in the node's host cache for the KV that the request has here, first come
        first served, and takes it; `swap_out` uses it."""
        room = await self._host_room(request, *self._host_need(request))
        if self.lost:
            self.host.discard(room)
            await self._loop.wait(Event(self._loop))
        self._claimed[request.request_id] = room

    def _host_need(self, request: Request) -> tuple[Pool, int]:
        """Blocks of the host cache that the request's KV here takes."""
        num_blocks = self.kv(request.model).held[request.request_id]
        return self._host_pool(request.model), num_blocks

    def swap_out(self, request: Request, on_done: Callable[[], None]) -> Event:
        """Begins to move the request's KV to the node's host cache; set, and `on_done` called, once
        it is there. Waits for room there if none was claimed.

        From now on the request is not on this device, and any instance may `swap_in` it.
        """
        ready, pool = Event(self._loop), self.kv(request.model)
        num_blocks = pool.held.get(request.request_id, 0)
        assert num_blocks, f"request {request.request_id} has no KV on {self.name}"
        runs = pool.detach(request)
        swapped = SwappedKv(self.host, ready, num_blocks)
        self._swapped[request.request_id] = self._leaving[request.request_id] = swapped
        swap = Swap(request, swapped, runs, on_done, self._loop.now)
        room = self._claimed.pop(request.request_id, None)
        if room is None:
            self._loop.start(self._room_first(swap), name=f"{self.name}: swap out")
        else:
            self._copy_out(swap, room)
        return ready

    async def _room_first(self, swap: Swap) -> None:
        request, num_blocks = swap.request, swap.swapped.num_blocks
        pool = self._host_pool(request.model)
        self._copy_out(swap, await self._host_room(request, pool, num_blocks))

    def _copy_out(self, swap: Swap, room: list[Run]) -> None:
        swapped, host = swap.swapped, self.host
        if self.lost:
            host.discard(room)
            return
        swapped.runs = room
        self._log_slabs(host)
        swap.begun_s = self._loop.now
        copy = KvCopy(swap.request.model, self.node, swapped.num_blocks, swap.here, room)
        self._device.copy_out(copy, partial(self._copied_out, swap))

    def _copied_out(self, swap: Swap, complete: bool) -> None:
        swapped = swap.swapped
        self._slabs.free(swap.here)
        del self._leaving[swap.request.request_id]
        if swapped.gone:
            self.host.discard(swapped.runs)
        swapped.ready.set()
        swap.on_done()
        self._log_swap("swap_out", swap)

    async def _host_room(self, request: Request, pool: Pool, num_blocks: int) -> list[Run]:
        """Room in the host's cache. A wait for it is recorded, even if the run ends in it."""
        if self.host.has_room(pool, num_blocks):
            return self.host.slabs.alloc(pool, num_blocks)
        asked_s = self._loop.now
        try:
            return await self.host.reserve(pool, num_blocks)
        finally:
            self._log_full(request, asked_s)

    def _log_full(self, request: Request, since_s: float) -> None:
        """Records that its KV, and maybe others', has waited for room in the host's cache."""
        self._recorder.event(
            "host_full", f"node-{self.node}", since_s, self._loop.now,
            request_id=request.request_id, model=request.model, host_kv_bytes=self.host.kv_bytes,
        )  # fmt: skip

    def swap_in(self, request: Request, on_done: Callable[[], None]) -> Event | None:
        """Begins to bring the request's KV to this device; set, and `on_done` called, once it is
        there. None, and nothing begins: there is no room for it and its next token."""
        pool = self.kv(request.model)
        if not pool.grow(request, request.computed_tokens + 1):
            return None
        swapped, arrived = self._swapped.pop(request.request_id), Event(self._loop)
        self._arriving[request.request_id] = swapped, arrived
        here = pool.runs[request.request_id]
        swap = Swap(request, swapped, here, on_done, self._loop.now)
        if swapped.ready.is_set:  # rule ②
            self._copy_in(swap, arrived)
        else:
            self._loop.start(self._ready_first(swap, arrived), name=f"{self.name}: swap in")
        return arrived

    async def _ready_first(self, swap: Swap, arrived: Event) -> None:
        await self._loop.wait(swap.swapped.ready)
        self._copy_in(swap, arrived)

    def _copy_in(self, swap: Swap, arrived: Event) -> None:
        swapped, model = swap.swapped, swap.request.model
        if swapped.gone or self.lost:
            arrived.set()
            return
        swap.begun_s, host, there = self._loop.now, swapped.host, swapped.runs
        host.release_after(arrived, there)
        copy = KvCopy(model, host.node, swapped.num_blocks, swap.here, there)
        self._device.copy_in(copy, partial(self._copied_in, swap, arrived))

    def _copied_in(self, swap: Swap, arrived: Event, complete: bool) -> None:
        if not complete:
            self._loop.start(self._broken_off(swap, arrived), name=f"{self.name}: broken off")
            return
        host = swap.swapped.host
        arrived.set()
        host.reclaim(arrived)  # rule ③
        del self._arriving[swap.request.request_id]
        swap.on_done()
        self._log_slabs(host)
        self._log_swap("swap_in", swap)

    async def _broken_off(self, swap: Swap, arrived: Event) -> None:
        request, host = swap.request, swap.swapped.host
        await self._notice(host)
        if self.lost:
            return
        arrived.set()
        host.reclaim(arrived)
        swap.swapped.gone = True
        lost = {"request_id": request.request_id, "model": request.model, "node": host.node}
        self._log("kv_lost", swap.begun_s, **lost)
        if self.on_kv_lost is None:
            raise InstanceLost(f"node-{host.node}")
        self.on_kv_lost(request)

    async def _notice(self, host: Host) -> None:
        """A copy from `host` broke off, and the death of its node, or of this device, is about to
        be known: returns then. RunError where both live."""
        struck = await self._loop.wait(host.struck, until=self._loop.now + NOTICE_S)
        if not struck and not self.lost:
            told = f"a copy of KV from node-{host.node} to {self.name} broke off"
            raise RunError(f"{told}, and no instance of that node has died")

    def in_host_memory(self, request: Request) -> bool:
        """Whether the request's KV is in a host's cache, or will be, for any instance to fetch."""
        swapped = self._swapped.get(request.request_id)
        return swapped is not None and not swapped.gone

    def evict(self, request: Request) -> None:
        """Gives up the request's KV, here or in a host's cache: nothing of it is computed any more.
        Not while it arrives here."""
        coming, _ = self._arriving.pop(request.request_id, (None, None))
        assert coming is None or coming.gone, request
        swapped = self._swapped.pop(request.request_id, None)
        if swapped is not None and not swapped.gone:
            swapped.gone = True
            if swapped.ready.is_set:
                swapped.host.discard(swapped.runs)
        claimed = self._claimed.pop(request.request_id, None)
        if claimed is not None:
            self.host.discard(claimed)
        self.kv(request.model).release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    def _lose(self, error: InstanceLost) -> None:
        self.lost = True
        self._log("lost", self._loop.now)
        if self.on_lost is None:
            raise error
        # Behind those who have had their answers before it died.
        told = self._tell(self.on_lost, error.with_node)
        self._loop.spawn(told, name=f"{self.name} is lost")

    async def _tell(self, on_lost: Callable[[set[int]], None], with_node: bool) -> None:
        """Its transfers touch no host memory any more: what was leaving is lost, and what was
        arriving is still there, if the node is."""
        self.host.struck.set()
        for room in self._claimed.values():
            self.host.discard(room)
        self._claimed.clear()
        lost = {request_id for request_id, swapped in self._leaving.items() if not swapped.gone}
        for swapped in self._leaving.values():
            self.host.discard(swapped.runs)
            swapped.gone = True
            swapped.ready.set()
        for request_id, (swapped, arrived) in self._arriving.items():
            swapped.host.move_list.pop(arrived, None)
            if not swapped.gone:
                self._swapped[request_id] = swapped
        self._arriving.clear()
        if with_node:
            lost |= self._lose_host()
        on_lost(lost)

    def _lose_host(self) -> set[int]:
        """The requests whose KV was in this node's memory, or on its way there. What other nodes
        are copying from it is theirs to tell."""
        lost = set[int]()
        for request_id, swapped in self._swapped.items():
            if swapped.host is self.host and not swapped.gone:
                lost.add(request_id)
                swapped.gone = True
                if swapped.ready.is_set:
                    self.host.discard(swapped.runs)
        return lost

    def _log(self, kind: str, start_s: float, **fields: object) -> None:
        """What this instance did from `start_s` to now, into the run's events."""
        self._recorder.event(kind, self.name, start_s, self._loop.now, **fields)

    def _log_slabs(self, host: Host) -> None:
        """Records how a host cache is used, at most every SAMPLE_S (Fig. 16)."""
        if self._loop.now < host.next_sample_s:
            return
        host.next_sample_s = self._loop.now + SAMPLE_S
        for shape in (None, *host.slabs.shapes()):
            self._recorder.event(
                "host_kv", f"node-{host.node}", self._loop.now, self._loop.now,
                block_bytes=shape and shape.block_bytes,
                unused_bytes=host.slabs.unused_bytes(shape),
                allocated_bytes=host.slabs.allocated_bytes(shape),
                fragmentation=host.slabs.fragmentation(shape),
            )  # fmt: skip

    def _log_swap(self, kind: str, swap: Swap) -> None:
        request = swap.request
        self._recorder.event(
            kind, self.name, swap.begun_s, self._loop.now, request_id=request.request_id,
            model=request.model, waited_s=swap.begun_s - swap.asked_s,
            bytes=swap.swapped.num_blocks * self._host_pool(request.model).block_bytes,
        )  # fmt: skip
