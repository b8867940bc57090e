"""FlexGen as a consumer (section 9.1): prompts larger than the device, one at a time.

A prompt's KV is an AQUA TENSOR in swap space, and the device holds a few layers of it at a time.
For each token all of it streams through the device: a layer's KV comes in, the layer is computed,
and the KV that it wrote goes out. With overlap, the next layer's KV comes and the previous layer's
KV goes meanwhile. The tensor in swap space is the whole context; copies on the device are scratch.
"""

from __future__ import annotations

from collections import deque

from harness.clock import Event, Loop, Task
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.elastic.page_tables import KvCopy
from harness.errors import InstanceLost, RunError
from harness.request import Batch, Request
from systems.aqua.config import AquaConfig
from systems.aqua.consumer import OnDeath
from systems.aqua.copies import place_name
from systems.aqua.informer import Looks
from systems.aqua.leases import Allocated
from systems.aqua.swap_space import SwapSpace
from systems.aqua.tensors import Tensor

BUFFERS = {True: 3, False: 1}  # page groups on the device at once, by overlap: in, compute, out


class Streamer:
    """Serves one prompt at a time. Raises RunError if there is no room for a request.

    on_death: called once with the requests that are left; none of their tokens are computed then.
    If the lender dies, the tensor is lost, and the request is computed again.
    """

    def __init__(
        self, config: AquaConfig, instance: ElasticInstance, swap: SwapSpace, loop: Loop,
        on_death: OnDeath,
    ) -> None:  # fmt: skip
        self.instance, self.swap, self._loop, self._on_death = instance, swap, loop, on_death
        self._cluster = swap.cluster
        self._overlap = config.consumer.overlap  # load beside computing
        self._looks = Looks(config.informer_config())
        self.wake = Event(loop)
        self._waiting: deque[Request] = deque()

    @property
    def num_blocks(self) -> int:
        """KV blocks of the longest request that can be served."""
        pages = self.instance.kv.num_pages // BUFFERS[self._overlap]
        return min(pages, self.swap.store(None).kv.num_blocks)

    def submit(self, request: Request) -> None:
        self._waiting.append(request)
        self.wake.set()

    def lose_lease(self, lease: str) -> None:
        """Nothing to do: the next copy from or to the lease fails."""

    async def serve(self) -> None:
        """Serves until the instance dies."""
        try:
            while True:
                self.wake.clear()
                if not self._waiting:
                    await self._loop.wait(self.wake)
                    continue
                await self._one(self._waiting[0])
                self._waiting.popleft()
        except InstanceLost:
            if self.instance.lost is None:
                raise
        left = [request for request in self._waiting if not request.finished]
        for request in left:
            self.instance.evict(request)
        self._on_death(left)

    async def _one(self, request: Request) -> None:
        while not request.finished:
            try:
                await self._from_its_prompt(request)
            except InstanceLost as error:
                self.instance.check_alive()
                if error.name == self.instance.name:  # so the coordinator says, as in `leases`
                    raise
                if not request.finished:
                    self.instance.evict(request)

    async def _from_its_prompt(self, request: Request) -> None:
        """Serves the request to its last token. Tokens generated before a loss count as prompt."""
        tokens = request.prompt_tokens + request.output_tokens - 1
        size = self.swap.num_bytes(self.instance.kv.blocks_for(tokens))
        tensor = Tensor(request.request_id, size, request, request)
        if not await self.swap.lay(tensor):
            raise RunError(f"no place has room for request {request.request_id}")
        try:
            prompt = request.known_tokens
            await self._iterate(tensor, prompt, Batch(chunks=[(request, prompt)]))
            while not request.finished:
                await self._tend(tensor)
                await self._iterate(tensor, 1, Batch(decodes=[request]))
        finally:
            self.swap.tensors.free(tensor.name)
            self.swap.store(tensor.lease).kv.release(request)
            self.instance.kv.release(request)
        await self.swap.free_allocations(tensor)

    async def _iterate(self, tensor: Tensor, tokens: int, batch: Batch) -> None:
        request, store = tensor.block_owner, self.swap.store(tensor.lease)
        kv, layout = self.instance.kv, self.instance.layout
        before = request.computed_tokens
        if not store.kv.grow(request, before + tokens):
            raise RunError(f"{store.name} has no room for request {request.request_id}")
        count = kv.blocks_for(before + tokens)
        read, written = range(kv.blocks_for(before)), range(before // kv.block_tokens, count)
        layers = pieces(layout.spec.num_layers, layout.page_layers)
        passing = self._cluster.layer_pass(batch, self.instance)
        copies: list[Task] = []

        def bring(group: int) -> Task:
            if not kv.accept(request, count, (group,)):
                raise RunError(f"request {request.request_id} has no room for a layer")
            copies.append(self._start(tensor, read, layers[group], into=True))
            return copies[-1]

        async def retire(group: int, going: Task) -> None:
            await self._end(going)
            kv.give_up(request, (group,))

        try:
            coming: Task | None = None
            going: tuple[int, Task] | None = None
            for group, piece in enumerate(layers):
                await self._end(coming or bring(group))
                coming = bring(group + 1) if self._overlap and layers[group + 1 :] else None
                await passing.run(piece)
                if going is not None:
                    await retire(*going)
                copies.append(self._start(tensor, written, piece, into=False))
                going = group, copies[-1]
                if not self._overlap:
                    await retire(*going)
                    going = None
            if going is not None:
                await retire(*going)
        except InstanceLost:
            for copy in copies:  # a late copy must not touch pages that another request has by then
                await self._loop.wait(copy.finished)
            raise
        finally:
            passing.end()
        self._looks.iterations += 1

    def _start(self, tensor: Tensor, blocks: range, layers: range, *, into: bool) -> Task:
        """Starts a copy beside computing. Its result is the death that it met, or None."""
        store = self.swap.store(tensor.lease)
        source, target = (store, self.instance) if into else (self.instance, store)
        purpose = f"stream {'in' if into else 'out'}, {place_name(tensor.lease)}"
        copies = [KvCopy(tensor.block_owner, tensor.block_owner, blocks)]

        async def copy() -> InstanceLost | None:
            try:
                await self._cluster.copy_kv(copies, layers, source, target, Sending(purpose))
            except InstanceLost as error:
                return error
            return None

        return self._loop.spawn(copy(), name=purpose)

    async def _end(self, copy: Task) -> None:
        """Waits until the copy is done. Raises InstanceLost if one of its ends has died."""
        if not copy.finished.is_set:
            await self._loop.wait(copy.finished)
        if copy.result is not None:
            raise copy.result

    async def _tend(self, tensor: Tensor) -> None:
        """The control loop, every n iterations: moves the tensor out of a lease that is asked back,
        or into a lease that has room."""
        leases = self.swap.leases
        if leases.coordinator is None or not self._looks.due(self._loop.now):
            return
        if tensor.lease is None:
            if (found := await self.swap.allocate(tensor.num_bytes)) is not None:
                await self._migrate(tensor, found)
        elif tensor.lease in await leases.overdrawn_bytes(self.instance.name):
            await self._migrate(tensor, None)

    async def _migrate(self, tensor: Tensor, to: Allocated | None) -> None:
        """Moves the filled part of the tensor."""
        request, lease = tensor.block_owner, None if to is None else to.lease
        source, target = self.swap.store(tensor.lease), self.swap.store(lease)
        if not target.kv.grow(request, request.computed_tokens):
            raise RunError(f"{target.name} has no room for request {request.request_id}")
        blocks = range(target.kv.blocks_for(request.computed_tokens))
        copies = [KvCopy(request, request, blocks)]
        sending = Sending(f"migrate, {place_name(lease)}")
        await self._cluster.copy_kv(copies, self.swap.layers, source, target, sending)
        source.kv.release(request)
        await self.swap.moved(tensor, to)


def pieces(num_layers: int, page_layers: int) -> list[range]:
    """The layers of each page group, in order."""
    return [range(k, min(k + page_layers, num_layers)) for k in range(0, num_layers, page_layers)]
