"""A pooled instance: one device (or tensor-parallel group) that models take turns on.

The primitive steps of Aegaeon §5 that a system puts in sequence: engine restarts, garbage
collection, loads and prefetches here, swaps of KV in `PooledKv`. The same bookkeeping on every
engine, over a `Device` that moves the bytes.
"""

from __future__ import annotations

from math import inf

from harness.clock import Event
from harness.device.instance import Instance
from harness.errors import InstanceLost
from harness.pooled.device import Device
from harness.pooled.host import Host, SharedByPool
from harness.pooled.kv import PooledKv
from harness.pooled.weights import WeightsBuffer
from harness.request import Batch


class PooledInstance(PooledKv):
    """Models are named as requests name them."""

    def __init__(self, device: Device, host: Host, shared: SharedByPool) -> None:
        super().__init__(device, host, shared)
        self._weights = WeightsBuffer(device, host, shared)
        self._executors: dict[str, Instance] = {}
        self._last_ran: str | None = None
        self._idle_since_s = 0.0
        self._last_step_s = 0.0
        self._hidden = False  # whether the latest model had been loaded before it was asked for

    @property
    def model(self) -> str | None:
        """The model whose weights are in place; None: nobody's."""
        return self._weights.running

    @property
    def prefetching(self) -> str | None:
        """The model whose weights lie or are on their way behind the running model's."""
        return self._weights.next

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        """Runs a batch as `Instance.execute` does, for requests of the model in place, whose blocks
        come from `kv(model)`."""
        requests = batch.requests
        model, running = requests[0].model, self.model
        assert model == running, f"{self.name} runs {running}, not {model}"
        held, arriving = self.kv(model).held, self._arriving
        for request in requests:  # rule ①: `holds`, without its look-ups for every request
            assert request.model == model, request
            here = request.request_id in held and request.request_id not in arriving
            assert here, f"request {request.request_id} is not on {self.name}"
        if model != self._last_ran:
            self.settle()
            before, hidden = self._last_ran, self._hidden
            self._log("switch", self._idle_since_s, model=model, before=before, hidden=hidden)
            self._last_ran = model
        executor = self._executors.get(model)
        if executor is None:
            executor = self._executors[model] = self._device.executor(model, self.kv(model))
        start_s, steps, lost = self._loop.now, 0, None
        try:
            steps = await executor.execute(batch, max_steps=max_steps, until=until, stop=stop)
        except InstanceLost as error:
            lost = error
        if lost is not None:  # behind the handler: mypyc's coroutines crash if closed within one
            await self._loop.wait(Event(self._loop))
            raise lost
        phase = "prefill" if batch.chunks else "decode"
        ids = [request.request_id for request in requests]
        self._recorder.event(
            "run", self.name, start_s, self._loop.now, model=model, phase=phase, requests=ids
        )
        return steps

    def settle(self) -> float:
        """Does as `Instance.settle`, whichever model ran."""
        executor = self._executors.get(self._last_ran or "")
        if executor is not None:
            self._last_step_s = max(self._last_step_s, executor.settle())
        return self._last_step_s

    def begin_switch(self) -> None:
        """Marks the beginning of the scaling whose latency the next `execute` ends (Fig. 15)."""
        self._idle_since_s = self._loop.now

    async def restart(self) -> None:
        """A new inference engine (Fig. 7, T0). The KV of every request must have been saved."""
        assert not any(pool.held for pool in self._pools.values()), "a restart would lose KV"
        start_s = self._loop.now
        await self._device.restart()
        self._weights.clear()
        self.settle()
        self._executors.clear()
        self._log("restart", start_s)

    async def collect_garbage(self) -> None:
        """What a tensor library's allocator needs between two models (§5.2)."""
        start_s = self._loop.now
        await self._device.collect_garbage()
        self._log("collect", start_s)

    async def load(self, model: str, *, staged: bool = True) -> None:
        """Replaces the weights in place by those of `model`."""
        self._hidden = False
        await self._weights.load(model, staged=staged)

    def can_prefetch(self, model: str) -> bool:
        return self._weights.can_prefetch(model)

    def prefetch(self, model: str) -> None:
        """Begins to load `model` beside the running one; needs `can_prefetch(model)`."""
        self._weights.prefetch(model)

    async def adopt(self) -> None:
        """Puts the model that is `prefetching` in place, waiting for the rest of it."""
        self._hidden = self._weights.prefetched is not None
        await self._weights.adopt()
