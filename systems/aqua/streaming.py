"""FlexGen as a consumer (section 9.1): prompts larger than the device, one at a time.

A prompt's KV is an AQUA TENSOR in swap space. For each token all of it streams through the device,
layer by layer. With overlap, a layer's KV comes while earlier layers are computed: an iteration of
n layers takes max(load + compute / n, load / n + compute). Without overlap it takes the sum. This
is the closed form, for the simulator; `layered_streaming.py` moves bytes. In the ledger the device
holds the whole context here; FlexGen would hold two layers of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from harness.clock import Event, Loop
from harness.device.elastic import ElasticInstance
from harness.device.elastic_cluster import ElasticCluster
from harness.device.fabric import Memory
from harness.device.kv_store import KvStore
from harness.errors import InstanceLost, RunError
from harness.request import Batch, Request
from systems.aqua import informer
from systems.aqua.informer import InformerConfig
from systems.aqua.leases import Leases


class Streamer:
    """Serves one prompt at a time.

    leases: None: only DRAM. control: settings of the control loop. on_death: called once with the
    requests that are left; none of their tokens are computed then. overlap: load beside computing.
    If the lender dies, the tensor is lost, and the request is computed again.
    """

    def __init__(
        self, cluster: ElasticCluster, instance: ElasticInstance, leases: Leases | None,
        dram: KvStore, control: InformerConfig, loop: Loop,
        on_death: Callable[[Sequence[Request]], None], *, overlap: bool,
    ) -> None:  # fmt: skip
        self._cluster, self.instance, self._leases = cluster, instance, leases
        self._dram, self._control, self._loop = dram, control, loop
        self._on_death, self._overlap = on_death, overlap
        self.wake = Event(loop)
        self._waiting: deque[Request] = deque()
        self._lease: tuple[str, str] | None = None  # (the tensor's allocation, its lease)
        self._compute_s = 0.0  # of the last iteration
        self._iterations, self._looked_s = 0, 0.0  # since the control loop's last look; its time

    @property
    def num_blocks(self) -> int:
        """KV blocks of the longest request that can be served."""
        return self.instance.kv.num_blocks

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
                self._lease = None
                if not request.finished:
                    self.instance.evict(request)

    async def _from_its_prompt(self, request: Request) -> None:
        """Serves the request to its last token. Tokens generated before a loss count as prompt."""
        whole = request.prompt_tokens + request.output_tokens - 1
        if not self.instance.kv.grow(request, whole):
            raise RunError(f"request {request.request_id} has no room")
        tensor_bytes, prompt = self._bytes(whole), request.known_tokens
        self._lease = await self._room(tensor_bytes)
        await self._beside(Batch(chunks=[(request, prompt)]), 0, self._bytes(prompt))
        while not request.finished:
            await self._tend(tensor_bytes, self._bytes(request.computed_tokens))
            reads = self._bytes(request.computed_tokens)
            await self._beside(Batch(decodes=[request]), reads, self._bytes(1))
        await self._free()

    async def _free(self) -> None:
        if self._lease is not None and self._leases is not None:
            await self._leases.free(self.instance.name, self._lease[0])
        self._lease = None

    async def _beside(self, batch: Batch, reads_bytes: int, writes_bytes: int) -> None:
        """Runs one iteration: `reads_bytes` come before or beside it, `writes_bytes` go after."""
        num_layers = self.instance.model.num_layers
        later = 0
        if self._overlap and reads_bytes:
            load_s = self._cluster.copy_s(self._place(), self.instance.memory, reads_bytes)
            hidden_s = min(load_s, self._compute_s) * (num_layers - 1) / num_layers
            later = int(reads_bytes * hidden_s / load_s)
        if reads_bytes:
            await self._copy(self._place(), self.instance.memory, reads_bytes - later, "stream in")
        start_s = self._loop.now
        rest = BesideCopy(self._loop)
        if later:
            coming = self._copy(self._place(), self.instance.memory, later, "stream in")
            self._loop.spawn(rest.run(coming), name="stream in")
        await self.instance.execute(batch, max_steps=1)
        self._compute_s = self._loop.now - start_s
        if later:
            await rest.end()
        await self._copy(self.instance.memory, self._place(), writes_bytes, "stream out")
        self._iterations += 1

    async def _tend(self, tensor_bytes: int, filled_bytes: int) -> None:
        """The control loop, every n iterations: moves the tensor out of a lease that is asked back,
        or into a lease that has room."""
        elapsed_s = self._loop.now - self._looked_s
        due = informer.look(self._control, iterations=self._iterations, elapsed_s=elapsed_s)
        if self._leases is None or not due:
            return
        self._iterations, self._looked_s = 0, self._loop.now
        old, source = self._lease, self._store()
        if old is not None and old[1] in await self._leases.overdrawn_bytes(self.instance.name):
            await self._migrate(source, self._dram, filled_bytes)
            await self._leases.free(self.instance.name, old[0])
            self._lease = None
        elif old is None:
            new = await self._room(tensor_bytes)
            if new is not None:
                await self._migrate(source, self._leases.stores[new[1]], filled_bytes)
                self._lease = new

    async def _room(self, num_bytes: int) -> tuple[str, str] | None:
        if self._leases is None:
            return None
        return await self._leases.allocate(self.instance.name, num_bytes)

    async def _migrate(self, source: KvStore, target: KvStore, num_bytes: int) -> None:
        """Moves the filled part of the tensor."""
        await self._copy(source.memory, target.memory, num_bytes, "migrate")

    def _store(self) -> KvStore:
        if self._lease is None or self._leases is None:
            return self._dram
        return self._leases.stores[self._lease[1]]

    def _place(self) -> Memory:
        return self._store().memory

    def _bytes(self, tokens: int) -> int:
        """Bytes of each device's part of the KV of `tokens`."""
        layout = self.instance.layout
        block_bytes = layout.num_groups * layout.page_bytes
        return block_bytes * tokens // layout.block_tokens

    async def _copy(self, source: Memory, target: Memory, num_bytes: int, what: str) -> None:
        host = self._dram.memory
        other = target if source == self.instance.memory else source
        if what == "migrate":
            other = target
        purpose = f"{what}, {'DRAM' if other == host else 'lease'}"
        await self._cluster.copy(source, target, num_bytes, purpose)


class BesideCopy:
    """A copy that runs beside computing."""

    def __init__(self, loop: Loop) -> None:
        self.done = Event(loop)
        self._loop = loop
        self._lost: InstanceLost | None = None

    async def run(self, copying: Coroutine[Any, Any, None]) -> None:
        try:
            await copying
        except InstanceLost as error:
            self._lost = error
        finally:
            self.done.set()

    async def end(self) -> None:
        """Waits until it is done. Raises InstanceLost if one of its ends has died."""
        if not self.done.is_set:
            await self._loop.wait(self.done)
        if self._lost is not None:
            raise self._lost
