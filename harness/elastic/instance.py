"""An instance whose weights and KV move: layers come and go, KV leaves and returns, by page group.

What BlitzScale §5, KunServe §4 and AQUA §4 keep, written once for all engines, over a `Fabric` that
moves the bytes and a runner that runs batches. Memory is a `DeviceLayout`: a layer that is dropped
becomes KV pages at once, a layer that is to come takes them back first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Protocol

from harness.clock import Event
from harness.device.base import Arriving
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Memory, Sending, Span
from harness.elastic.kv_directory import RunningBatch
from harness.elastic.kv_region import KvRegion
from harness.elastic.shared import Shared
from harness.errors import InstanceLost, RunError, UsageError
from harness.request import Batch, Request


class Runner(Protocol):
    """Runs batches whose weights and KV are all on one device."""

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
        interrupt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        """Runs a batch as `Instance.execute` does; `interrupt`: as `stop`, the device's own.
        `arriving`: all layers, where weights of some are still on their way: one iteration. Raises
        InstanceLost."""

    def settle(self) -> float: ...


class ElasticInstance:
    """An instance whose layers come and go. `resident`: layers whose weights are here from the
    start; None: all."""

    def __init__(
        self, memory: Memory, layout: DeviceLayout, shared: Shared, resident: range | None
    ) -> None:
        self.name, self.memory = memory.name, memory
        self.model, self.layout = layout.spec, layout
        self.page_bytes = layout.page_bytes
        self._region = KvRegion(memory.name, layout, shared.fabric.places_matter)
        self.kv, self.tables = self._region.pool, self._region.tables
        self.lost: InstanceLost | None = None
        self.runner: Runner  # set by the engine
        self._shared, self._loop, self._directory = shared, shared.loop, shared.directory
        self._every = range(self.model.num_layers)
        self._here = {layer: Event(self._loop) for layer in self._every}
        self._away = set(self._here)  # layers that are not here
        self._loading = set[int]()
        self.gone = Event(self._loop)  # set once it is lost
        self._running: dict[RunningBatch, None] = {}
        self._occupied_s = self._since_s = 0.0  # by batches until there was none, and since when
        for layer in self._here if resident is None else resident:
            self._here[layer].set()
            self._away.discard(layer)

    @property
    def resident(self) -> frozenset[int]:
        """Layers whose weights are here."""
        return frozenset(layer for layer, here in self._here.items() if here.is_set)

    def arrival(self, layer: int) -> Event:
        """The event that is set while the weights of `layer` are here."""
        return self._here[layer]

    def arriving(self, layers: range) -> Arriving | None:
        """`layers`, where one of them is still on its way."""
        if not self._loading or self._loading.isdisjoint(layers):
            return None
        return Arriving([self._here[k] for k in layers], [self.gone])

    def check_layers(self, layers: range) -> None:
        """RunError where some of `layers` are not here, and are loaded by nobody."""
        if not self._away:
            return
        missing = [k for k in sorted(self._away) if k in layers and k not in self._loading]
        if missing:
            raise RunError(f"{self.name}: a batch needs layers that are not here: {missing}")

    # Running batches

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        """Runs a batch as `Instance.execute` does, of requests whose KV is all here. Layers that
        are being loaded are waited for in the midst of the first iteration, each when its turn
        comes; where some were, that iteration is all. A load that is broken off leaves the batch
        waiting for the next."""
        self.check_alive()
        every, requests = self._every, batch.requests
        self.check_layers(every)
        if self._directory.closed:
            await self._directory.opened(requests)
        running = self.begin(requests)
        try:
            self._check_kv(requests)
            arriving = self.arriving(every)
            return await self.runner.execute(
                batch, max_steps=max_steps if arriving is None else 1, until=until, stop=stop,
                interrupt=running.interrupt, arriving=arriving,
            )  # fmt: skip
        finally:
            self.end(running)
            if self._directory.wheres:
                for request in requests:
                    if request.finished:
                        self._directory.forget(request)

    def begin(self, requests: list[Request]) -> RunningBatch:
        """Begins a batch that needs this instance, its requests' gates being open; `end` ends it.
        InstanceLost where it has died, be it while KV of `requests` was moved."""
        running = self._directory.begin(requests)
        if self.lost is not None:
            self._directory.end(running)
            raise self.lost
        self.join(running)
        return running

    def join(self, running: RunningBatch) -> None:
        """Has the batch need this instance until it leaves."""
        if not self._running:
            self._since_s = self._loop.now
        self._running[running] = None

    def leave(self, running: RunningBatch) -> None:
        occupied_s = self.occupied_s
        self._running.pop(running, None)
        if not self._running:
            self._occupied_s = occupied_s

    @property
    def occupied_s(self) -> float:
        """Seconds so far in which one batch at least needed this instance."""
        return self._occupied_s + (self._loop.now - self._since_s if self._running else 0.0)

    def end(self, running: RunningBatch) -> None:
        self.leave(running)
        self._directory.end(running)

    def settle(self) -> float:
        return self.runner.settle()

    def evict(self, request: Request) -> None:
        """Evicts `request` as `Instance.evict` says, wherever its KV is. RunError in mid-batch."""
        self._directory.check_evictable(request)
        self._directory.release(request)
        self.kv.release(request)
        request.computed_tokens = 0
        self._shared.recorder.preempted(request, self.name, self._loop.now)

    # Weights

    async def load(
        self, layers: range, source: ElasticInstance | Memory, *,
        on_layer: Callable[[int], None] | None = None, stop: Event | None = None,
    ) -> bool:  # fmt: skip
        """Brings the weights of `layers`, one after the other in their order; a layer that is here
        costs nothing. `source`: an instance of the model, which may itself be loading (a chain
        forwards each layer as it comes), or a node's DRAM or SSD. `on_layer` is called as each
        has come. False: `stop` broke it off. Their bytes are taken back from the KV first:
        RunError where those pages are not free; those of layers that do not come are KV again.
        """
        self.layout.spec.layer_range(layers)
        if isinstance(source, ElasticInstance) and source.model.name != self.model.name:
            raise UsageError(f"{source.name} has {source.model.name}, not {self.model.name}")
        wanted = [k for k in layers if not self._here[k].is_set and k not in self._loading]
        taken = self._region.given(wanted)
        if taken:
            self._region.take_back(wanted)
            await self._compact()
        self._loading.update(wanted)
        start_s, complete = self._loop.now, False
        lost: InstanceLost | None = None
        try:
            complete = not wanted or await self._bring(wanted, source, on_layer, stop)
        except InstanceLost as error:  # compiled code must not wait within `except`
            lost = error
        await self._end_load(wanted, taken, start_s, source.name)
        if lost is not None:
            raise lost
        return complete

    async def _end_load(
        self, wanted: Sequence[int], taken: Collection[int], start_s: float, source: str
    ) -> None:
        """Ends a load, of whose `wanted` layers some may not have come. The bytes of those which
        had been KV's, of layers in `taken`, are pages as before."""
        self._loading.difference_update(wanted)
        back = [layer for layer in taken if not self._here[layer].is_set]
        if back and self.lost is None:
            await self._shared.fabric.forget(self.memory, back, used=False)
            self._region.give(back)
        came = [layer for layer in wanted if self._here[layer].is_set]
        self._shared.record("load", self.name, start_s, layers=came, source=source)

    async def _bring(
        self, layers: Sequence[int], source: ElasticInstance | Memory,
        on_layer: Callable[[int], None] | None, stop: Event | None,
    ) -> bool:  # fmt: skip
        self.check_alive()
        instance = source if isinstance(source, ElasticInstance) else None
        memory = source.memory if isinstance(source, ElasticInstance) else source
        spans = {}
        for layer in layers:
            into = self.layout.layer_at[layer]
            at = into.start - self.layout.layer_at[0].start  # files: one behind the other
            if instance is not None:
                at = instance.layout.layer_at[layer].start
            spans[layer] = Span(at, into.start, len(into))

        def came(layer: int, start_s: float) -> None:
            num_bytes = spans[layer].num_bytes
            self._shared.transferred(memory, self.name, "weights", start_s, num_bytes)
            self._here[layer].set()
            self._away.discard(layer)
            self._loading.discard(layer)
            if on_layer is not None:
                on_layer(layer)

        arrival = None if instance is None else instance.arrival
        done = await self._shared.fabric.load(memory, self.memory, spans, arrival, came, stop)
        self.check_alive()
        return done

    async def drop(self, layers: range) -> None:
        """Gives up the weights of `layers`; their bytes are KV pages from now on. RunError where
        a batch is running that may need them."""
        self.layout.spec.layer_range(layers)
        gone = [layer for layer in layers if self._here[layer].is_set]
        if self._running:
            raise RunError(f"{self.name}: layers are dropped in mid-batch")
        for layer in gone:
            self._here[layer].clear()
            self._away.add(layer)
        await self._shared.fabric.forget(self.memory, gone, used=True)
        self._region.give(gone)
        pages = self.kv.num_pages
        self._shared.record("drop", self.name, self._loop.now, layers=gone, kv_pages=pages)

    async def lend(self, pages: int) -> range:
        """Gives up `pages` of the KV memory in one piece, and returns their bytes. RunError where
        not so many are free."""
        lent = self._region.lend(pages)
        await self._compact()
        return lent

    def take_home(self, lent: range) -> None:
        """Bytes that were lent are the KV's again."""
        self._region.take_home(lent)

    async def _compact(self) -> None:
        """Blocks that lie in bytes which are no pages any more move to pages."""
        if self.tables is None:
            return
        outside = self.tables.outside()
        gate = await self._directory.close_gates(outside)
        try:
            async with self.tables.compacting(self._loop):
                if spans := self.tables.compact(outside, self.page_bytes):
                    self.check_alive()
                    start_s, size = self._loop.now, sum(span.num_bytes for span in spans)
                    await self._shared.fabric.copy(
                        self.memory, self.memory, size, lambda: spans, Sending("compaction")
                    )
                    self.check_alive()
                    self._shared.transferred(self.memory, self.name, "compaction", start_s, size)
        finally:
            self._directory.open_gates(gate)

    # Death

    def check_alive(self) -> None:
        if self.lost is not None:
            raise self.lost

    def interrupt_all(self) -> None:
        """Ends every batch that needs this instance at its next boundary."""
        for running in list(self._running):
            running.interrupt.set()

    def lose(self, error: InstanceLost) -> None:
        """It is gone: everything under way on it fails."""
        self.lost = error
        for here in self._here.values():
            here.clear()
        self._away.update(self._here)
        self.gone.set()
        self.interrupt_all()

    def _check_kv(self, requests: Sequence[Request]) -> None:
        if not self.kv.split:
            return
        groups, whole = self.kv.groups, self.kv.all_groups
        for request in requests:
            here = groups.get(request.request_id)
            if here is not None and here is not whole and here != whole:
                raise RunError(
                    f"{self.name}: request {request.request_id} has KV of page groups {here} here "
                    "and of others elsewhere: run it as a pipeline"
                )
