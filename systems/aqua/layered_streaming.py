"""FlexGen's loop on devices (section 9.1): a prompt's KV is in swap space, and the device holds a
few layers of it at a time. `streaming.py` has the same in closed form, for the simulator.

A layer's KV comes in, the layer is computed, and the KV that it wrote goes out. With overlap, the
next layer's KV comes and the previous layer's KV goes meanwhile. The tensor in swap space is the
whole context; copies on the device are scratch.
"""

from __future__ import annotations

from harness.device.kv_store import KvStore
from harness.errors import InstanceLost, RunError
from harness.request import Batch, Request
from systems.aqua.streaming import BesideCopy, Streamer

BUFFERS = {True: 3, False: 1}  # page groups on the device at once, by overlap: in, compute, out


class LayeredStreamer(Streamer):
    """A `Streamer` that moves the bytes. Raises RunError if there is no room for a request."""

    @property
    def num_blocks(self) -> int:
        pages = self.instance.kv.num_pages // BUFFERS[self._overlap]
        return min(pages, self._dram.kv.num_blocks)

    async def _from_its_prompt(self, request: Request) -> None:
        whole = request.prompt_tokens + request.output_tokens - 1
        tensor_bytes = self._whole_bytes(whole)
        self._lease = await self._room(tensor_bytes)
        try:
            chunk = request.known_tokens
            await self._iterate(request, chunk, Batch(chunks=[(request, chunk)]))
            while not request.finished:
                self._request = request
                await self._tend(tensor_bytes, self._bytes(request.computed_tokens))
                await self._iterate(request, 1, Batch(decodes=[request]))
        finally:
            self._store().kv.release(request)
            self.instance.kv.release(request)
        await self._free()

    async def _iterate(self, request: Request, tokens: int, batch: Batch) -> None:
        store, kv, layout = self._store(), self.instance.kv, self.instance.layout
        before = request.computed_tokens
        if not store.kv.grow(request, before + tokens):
            raise RunError(f"{store.name} has no room for request {request.request_id}")
        count = kv.blocks_for(before + tokens)
        read, written = range(kv.blocks_for(before)), range(before // kv.block_tokens, count)
        layers = pieces(layout.spec.num_layers, layout.page_layers)
        passing = self._cluster.layer_pass(batch, self.instance)
        copies: list[BesideCopy] = []

        def bring(group: int) -> BesideCopy:
            self._take_room(request, count, group)
            return self._start(request, read, layers[group], store, into=True)

        async def retire(group: int, going: BesideCopy) -> None:
            await going.end()
            kv.give_up(request, (group,))

        try:
            going: tuple[int, BesideCopy] | None = None
            coming = bring(0)
            for group, piece in enumerate(layers):
                copies.append(coming)
                await coming.end()
                more = group + 1 < len(layers)
                if self._overlap and more:
                    coming = bring(group + 1)
                    copies.append(coming)
                await passing.run(piece)
                if going is not None:
                    await retire(*going)
                going = group, self._start(request, written, piece, store, into=False)
                copies.append(going[1])
                if not self._overlap:
                    await retire(*going)
                    going = None
                    if more:
                        coming = bring(group + 1)
            if going is not None:
                await retire(*going)
        except InstanceLost:
            for copy in copies:  # a late copy must not touch pages that another request has by then
                await self._loop.wait(copy.done)
            raise
        finally:
            passing.end()
        self._iterations += 1

    def _take_room(self, request: Request, num_blocks: int, group: int) -> None:
        if not self.instance.kv.accept(request, num_blocks, (group,)):
            raise RunError(f"request {request.request_id} has no room for a layer")

    def _start(
        self, request: Request, blocks: range, layers: range, store: KvStore, *, into: bool
    ) -> BesideCopy:
        where = "DRAM" if store is self._dram else "lease"
        ends = (store, self.instance) if into else (self.instance, store)
        purpose = f"stream {'in' if into else 'out'}, {where}"
        copy = BesideCopy(self._loop)
        moving = self._cluster.copy_kv(request, blocks, layers, *ends, purpose=purpose)
        self._loop.spawn(copy.run(moving), name=purpose)
        return copy

    async def _migrate(self, source: KvStore, target: KvStore, num_bytes: int) -> None:
        request, where = self._request, "DRAM" if target is self._dram else "lease"
        if not target.kv.grow(request, request.computed_tokens):
            raise RunError(f"{target.name} has no room for request {request.request_id}")
        blocks = range(target.kv.blocks_for(request.computed_tokens))
        layers = range(self.instance.model.num_layers)
        await self._cluster.copy_kv(
            request, blocks, layers, source, target, purpose=f"migrate, {where}"
        )
        source.kv.release(request)

    def _whole_bytes(self, tokens: int) -> int:
        layout = self.instance.layout
        return self.instance.kv.blocks_for(tokens) * layout.num_groups * layout.page_bytes


def pieces(num_layers: int, page_layers: int) -> list[range]:
    """The layers of each page group, in order."""
    return [range(k, min(k + page_layers, num_layers)) for k in range(0, num_layers, page_layers)]
