"""An instance whose weights and KV move: layers come and go, KV leaves and returns, by page group.

What BlitzScale §5, KunServe §4 and AQUA §4 keep, written once for all engines, over a `Fabric` that
moves the bytes and a runner that runs batches. Memory is a `DeviceLayout`: a layer that is dropped
becomes KV pages at once, a layer that is to come takes them back first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Protocol

from harness.clock import Event, Loop
from harness.elastic.arriving import Arriving
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Fabric, Memory, Span
from harness.elastic.kv_directory import Flight, KvDirectory
from harness.elastic.kv_region import KvRegion
from harness.elastic.page_uses import begin_compaction, end_compaction
from harness.errors import InstanceLost, RunError, UsageError
from harness.records.record import Recorder
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
        halt: Event | None = None,
        arriving: Arriving | None = None,
    ) -> int:
        """As `Instance.execute`; `halt`: as `stop`, the device's own. `arriving`: all layers, where
        weights of some are still on their way: one iteration. Raises InstanceLost."""
        ...

    def settle(self) -> float: ...


def ignore(layer: int) -> None:
    """Nobody waits for single layers."""


class ElasticInstance:
    """`resident`: whose weights are here from the start."""

    def __init__(
        self,
        memory: Memory,
        layout: DeviceLayout,
        directory: KvDirectory,
        fabric: Fabric,
        loop: Loop,
        recorder: Recorder,
        *,
        resident: range,
    ) -> None:
        self.name, self.memory = memory.name, memory
        self.model, self.layout = layout.spec, layout
        self.page_bytes = layout.page_bytes
        self._region = KvRegion(memory.name, layout, fabric.places_matter)
        self.kv, self.tables = self._region.pool, self._region.tables
        self.directory = directory
        self.lost: InstanceLost | None = None
        self.runner: Runner  # set by the engine
        self._fabric, self._loop, self._recorder = fabric, loop, recorder
        self._here = {layer: Event(loop) for layer in range(self.model.num_layers)}
        self._loading = set[int]()
        self.gone = Event(loop)  # set once it is lost
        self._flights: dict[Flight, None] = {}
        for layer in resident:
            self._here[layer].set()

    @property
    def resident(self) -> frozenset[int]:
        """Layers whose weights are here."""
        return frozenset(layer for layer, here in self._here.items() if here.is_set)

    def arrival(self, layer: int) -> Event:
        """Set while the weights of `layer` are here."""
        return self._here[layer]

    def arriving(self, layers: range) -> Arriving | None:
        """`layers`, where one of them is still on its way."""
        if not self._loading or self._loading.isdisjoint(layers):
            return None
        return Arriving([self._here[k] for k in layers], [self.gone])

    def not_to_come(self, layers: range) -> list[int]:
        """Those of `layers` that are not here, and that nobody loads."""
        here, loading = self._here, self._loading
        return [layer for layer in layers if not (here[layer].is_set or layer in loading)]

    # Running batches

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        """`Instance.execute`, of requests whose KV is all here. Layers that are being loaded are
        waited for in the midst of the first iteration, each when its turn comes; where some were,
        that iteration is all. A load that is broken off leaves the batch waiting for the next."""
        self.check_alive()
        every = range(self.model.num_layers)
        if missing := self.not_to_come(every):
            raise RunError(f"{self.name}: execute needs all layers; not loaded: {missing}")
        self._check_kv(batch.requests)
        flight = await self.launch(batch.requests)
        try:
            self._check_kv(batch.requests)
            arriving = self.arriving(every)
            return await self.runner.execute(
                batch, max_steps=max_steps if arriving is None else 1, until=until, stop=stop,
                halt=flight.halt, arriving=arriving,
            )  # fmt: skip
        finally:
            self.land(flight)
            for request in batch.requests:
                if request.finished:
                    self.directory.forget(request)

    async def launch(self, requests: Sequence[Request]) -> Flight:
        """Begins a flight that needs this instance; `land` ends it. InstanceLost where it has died,
        be it while KV of `requests` was moved."""
        flight = await self.directory.launch(requests)
        if self.lost is not None:
            self.directory.land(flight)
            raise self.lost
        self.join(flight)
        return flight

    def join(self, flight: Flight) -> None:
        self._flights[flight] = None

    def leave(self, flight: Flight) -> None:
        self._flights.pop(flight, None)

    def land(self, flight: Flight) -> None:
        self.leave(flight)
        self.directory.land(flight)

    def settle(self) -> float:
        return self.runner.settle()

    def evict(self, request: Request) -> None:
        """`Instance.evict`, wherever the request's KV is. RunError in mid-batch."""
        self.directory.check_settled(request)
        for holder, _ in self.directory.where(request):
            holder.kv.release(request)
        self.directory.forget(request)
        self.kv.release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    # Weights

    async def load(
        self,
        layers: range,
        source: ElasticInstance | Memory,
        *,
        priority: int = 0,
        chunk_bytes: int | None = None,
        on_layer: Callable[[int], None] = ignore,
        stop: Event | None = None,
    ) -> bool:
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
            await self._retreat()
        self._loading.update(wanted)
        start_s, complete = self._loop.now, False
        try:
            complete = not wanted or await self._bring(
                wanted, source, priority, chunk_bytes, on_layer, stop
            )
        except InstanceLost:
            await self._end_load(wanted, taken, start_s, source.name)
            raise
        await self._end_load(wanted, taken, start_s, source.name)
        return complete

    async def _end_load(
        self, wanted: Sequence[int], taken: Collection[int], start_s: float, source: str
    ) -> None:
        """Of `wanted` layers some may not have come; `taken`: those whose bytes had been KV's."""
        self._loading.difference_update(wanted)
        await self._give_again([layer for layer in taken if not self._here[layer].is_set])
        self._recorder.event(
            "load", self.name, start_s, self._loop.now,
            layers=[layer for layer in wanted if self._here[layer].is_set], source=source,
        )  # fmt: skip

    async def _bring(
        self, layers: Sequence[int], source: ElasticInstance | Memory, priority: int,
        chunk_bytes: int | None, on_layer: Callable[[int], None], stop: Event | None,
    ) -> bool:  # fmt: skip
        self.check_alive()
        instance = source if isinstance(source, ElasticInstance) else None
        memory = source.memory if isinstance(source, ElasticInstance) else source
        spans = {}
        for layer in layers:
            into = self.layout.layer_at[layer]
            spans[layer] = Span(self.weights_at(source, layer), into.start, len(into))

        def came(layer: int, start_s: float) -> None:
            self._recorder.event(
                "transfer", self.name, start_s, self._loop.now,
                source=memory.name, purpose="weights", bytes=spans[layer].num_bytes, complete=True,
            )  # fmt: skip
            self._here[layer].set()
            self._loading.discard(layer)
            on_layer(layer)

        done = await self._fabric.load(
            memory, self.memory, spans, arrival=None if instance is None else instance.arrival,
            on_layer=came, priority=priority, chunk_bytes=chunk_bytes, stop=stop,
        )  # fmt: skip
        self.check_alive()
        return done

    def weights_at(self, source: ElasticInstance | Memory, layer: int) -> int:
        """Where `layer` begins in `source`: files hold the layers one behind the other."""
        if isinstance(source, ElasticInstance):
            return source.layout.layer_at[layer].start
        return self.layout.layer_at[layer].start - self.layout.layer_at[0].start

    async def drop(self, layers: range) -> None:
        """Gives up the weights of `layers`; their bytes are KV pages from now on. RunError where
        a batch is running that may need them."""
        self.layout.spec.layer_range(layers)
        gone = [layer for layer in layers if self._here[layer].is_set]
        if self._flights:
            raise RunError(f"{self.name}: layers are dropped in mid-batch")
        for layer in gone:
            self._here[layer].clear()
        await self._fabric.forget(self.memory, gone, used=True)
        self._region.give(gone)
        now = self._loop.now
        self._recorder.event("drop", self.name, now, now, layers=gone, kv_pages=self.kv.num_pages)

    async def _give_again(self, layers: Sequence[int]) -> None:
        """Layers that were to come and have not: their bytes are KV pages as before."""
        if layers and self.lost is None:
            await self._fabric.forget(self.memory, layers, used=False)
            self._region.give(layers)

    async def lend(self, pages: int) -> range:
        """Gives up `pages` of the KV memory in one piece: their bytes. RunError where not so many
        are free."""
        lent = self._region.lend(pages)
        await self._retreat()
        return lent

    def take_home(self, lent: range) -> None:
        """Bytes that were lent are the KV's again."""
        self._region.take_home(lent)

    async def _retreat(self) -> None:
        """Blocks that lie in bytes which are no pages any more move to pages."""
        if self.tables is None:
            return
        outside = self._region.outside()
        gate = await self.directory.ground(outside)
        try:
            await begin_compaction(self._loop, self.tables.uses)
            try:
                if spans := self._region.retreat(outside):
                    size = sum(span.num_bytes for span in spans)
                    await self.copy_from(self.memory, size, lambda: spans, purpose="compaction")
            finally:
                end_compaction(self.tables.uses)
        finally:
            self.directory.open(gate)

    # Bytes

    async def copy_from(
        self, source: Memory, num_bytes: int, spans: Callable[[], Sequence[Span]], *,
        purpose: str, priority: int = 0, chunk_bytes: int | None = None, stop: Event | None = None,
    ) -> bool:  # fmt: skip
        """`Fabric.copy` into this instance's memory."""
        self.check_alive()
        start_s = self._loop.now
        done = await self._fabric.copy(
            source, self.memory, num_bytes, spans, purpose=purpose, priority=priority,
            chunk_bytes=chunk_bytes, stop=stop,
        )  # fmt: skip
        self.check_alive()
        self._recorder.event(
            "transfer", self.name, start_s, self._loop.now,
            source=source.name, purpose=purpose, bytes=num_bytes, complete=done,
        )  # fmt: skip
        return done

    # Death

    def check_alive(self) -> None:
        if self.lost is not None:
            raise self.lost

    def halt_all(self) -> None:
        """Ends every flight over this instance at its next boundary."""
        for flight in list(self._flights):
            flight.halt.set()

    def lose(self, error: InstanceLost) -> None:
        """It is gone: everything under way on it fails."""
        self.lost = error
        for here in self._here.values():
            here.clear()
        self.gone.set()
        self.halt_all()

    def _check_kv(self, requests: Sequence[Request]) -> None:
        groups, whole = self.kv.groups, self.kv.all_groups
        for request in requests:
            here = groups.get(request.request_id)
            if here is not None and here != whole:
                raise RunError(
                    f"{self.name}: request {request.request_id} has KV of page groups {here} here "
                    "and of others elsewhere: run it as a pipeline"
                )
