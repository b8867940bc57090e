"""The weights buffer of a pooled device: the running model at its start, the next one behind it.

Aegaeon §5.2: bump allocation, since models come and go whole; a prefetched model is moved to the
start by a copy on the device, and nothing is ever fragmented or collected.
"""

from __future__ import annotations

from harness.clock import Event
from harness.device.memory import BumpAllocator
from harness.pooled.device import Device
from harness.pooled.host import Host, SharedByPool
from harness.pooled.plan import ALIGN_BYTES, device_weight_bytes


class WeightsBuffer:
    """`running` is the model whose weights are complete at the buffer's start; `next` the one
    behind it, being prefetched or there already."""

    def __init__(self, device: Device, host: Host, shared: SharedByPool) -> None:
        self.running: str | None = None
        self.next: str | None = None
        self._device, self._host, self._models = device, host, shared.models
        self._sizes = {name: device_weight_bytes(spec) for name, spec in self._models.items()}
        self._bump = BumpAllocator(shared.plan.weights_bytes, ALIGN_BYTES)
        self._loop, self._recorder = shared.loop, shared.recorder
        self._next_at = 0
        self._stop_prefetch = Event(self._loop)
        self._prefetch_over = Event(self._loop)
        self._prefetch_over.set()

    @property
    def prefetched(self) -> str | None:
        """The model whose weights are complete behind the running one's."""
        return self.next if self._prefetch_over.is_set else None

    def can_prefetch(self, model: str) -> bool:
        """Whether `model` has room beside the running one, and nothing is behind that yet."""
        if self.running is None or self.next is not None or model == self.running:
            return False
        return self._sizes[model] <= self._bump.capacity_bytes - self._bump.top_bytes

    def prefetch(self, model: str) -> None:
        """Begins to load `model` behind the running one, beside its execution."""
        assert self.can_prefetch(model), f"no room to prefetch {model}"
        self.next = model
        self._next_at = self._bump.alloc(self._sizes[model])
        self._stop_prefetch = Event(self._loop)
        self._prefetch_over.clear()
        self._loop.start(self._prefetch(model), name=f"{self._device.name}: prefetch")

    async def _prefetch(self, model: str) -> None:
        start_s = self._loop.now
        complete = await self._fetch(model, self._next_at, staged=True, stop=self._stop_prefetch)
        if not complete:
            self.next = None
        self._prefetch_over.set()
        self._log("prefetch", start_s, model=model, complete=complete)

    async def adopt(self) -> None:
        """Makes the prefetched model the running one, once it is there."""
        assert self.next is not None, "nothing is prefetched"
        await self._loop.wait(self._prefetch_over)
        model, start_s = self.next, self._loop.now
        self.running = None
        await self._device.relocate(model, self._next_at, 0)
        self._settle(model)
        self._log("adopt", start_s, model=model)

    async def load(self, model: str, *, staged: bool) -> None:
        """Makes `model` the running one from the host's memory; what was prefetched is lost."""
        self.running = None  # nothing may be prefetched behind what is about to go
        if not self._prefetch_over.is_set:
            self._stop_prefetch.set()
            await self._loop.wait(self._prefetch_over)
        start_s = self._loop.now
        self.clear()
        await self._fetch(model, 0, staged=staged, stop=None)
        self._settle(model)
        self._log("load", start_s, model=model, staged=staged)

    def clear(self) -> None:
        """Resets the bump pointer: no weights are in the buffer."""
        self.running = self.next = None
        self._bump.reset()

    def _log(self, kind: str, start_s: float, **fields: object) -> None:
        self._recorder.event(kind, self._device.name, start_s, self._loop.now, **fields)

    async def _fetch(self, model: str, at_bytes: int, *, staged: bool, stop: Event | None) -> bool:
        source = self._host.models.source(self._models[model])
        complete = await self._device.load(model, at_bytes, source, staged=staged, stop=stop)
        if complete:
            self._host.models.keep(self._models[model])
        return complete

    def _settle(self, model: str) -> None:
        self.clear()
        self._bump.alloc(self._sizes[model])
        self.running = model
