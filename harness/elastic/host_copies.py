"""Copies of models' weights in a node's DRAM: which there are is the system's to decide.

ServerlessLLM's caches and BlitzScale §4's parameter pool are policies over this. The SSD has every
model.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.clock import Event
from harness.device.location import dram, ssd
from harness.device.memory import Region
from harness.elastic.device_layout import weight_bytes
from harness.elastic.fabric import Memory, Sending, Span
from harness.elastic.instance import ElasticInstance
from harness.elastic.shared import Shared
from harness.errors import UsageError
from harness.model_spec import ModelSpec


class HostCopies:
    def __init__(
        self, node: int, capacity_bytes: int, models: Mapping[str, ModelSpec], shared: Shared
    ) -> None:
        self.node = node
        self.region = Region(f"DRAM of node {node}", capacity_bytes)
        # Specs by the names of instances and of requests: two models may have one spec's name.
        self._models = {spec.name: spec for spec in models.values()} | dict(models)
        self.lost = False  # it has failed
        self._shared = shared
        self._complete = set[str]()

    def __contains__(self, model: str) -> bool:
        return model in self._complete

    def keep(self, model: str) -> None:
        """Has the copy be there, as at the start of a run. OutOfMemory: it does not fit."""
        self._hold(model)
        self._complete.add(model)

    def _hold(self, model: str) -> int:
        """Takes the room of the copy: the bytes of all devices of an instance together."""
        spec = self._models[model]
        num_bytes = spec.tp * weight_bytes(spec)
        self.region.hold(model, num_bytes)
        return num_bytes

    async def fetch(
        self, model: str, source: ElasticInstance | Memory, *, stop: Event | None = None
    ) -> bool:
        """Copies `model` here, from an instance that has all of it, another node's DRAM or an
        SSD. False: `stop` broke it off, or the host has failed. OutOfMemory: it does not fit."""
        num_bytes = self._hold(model)
        size, at, memory = weight_bytes(self._models[model]), 0, source
        if isinstance(source, ElasticInstance):  # files have the model from their beginning on
            at, memory = source.layout.layer_at[0].start, source.memory
        assert isinstance(memory, Memory)
        span = Span(at, 0, size)
        start_s, done = self._shared.loop.now, False
        try:
            done = await self._shared.fabric.copy(
                memory, self.memory(model), size, lambda: [span], Sending("weights", stop=stop)
            )
            done = done and not self.lost
        finally:
            if done:
                self._complete.add(model)
            else:
                self.region.hold(model, 0)
            self._shared.record(
                "host_copy", f"node-{self.node}", start_s, model=model, complete=done,
                bytes=num_bytes,
            )  # fmt: skip
        return done

    def drop(self, model: str) -> None:
        self._complete.discard(model)
        self.region.hold(model, 0)

    def fail(self) -> None:
        """All that is here is lost."""
        self.lost = True
        for model in list(self._complete):
            self.drop(model)

    def memory(self, model: str) -> Memory:
        """The memory of the copy, as a source of `ElasticInstance.load`."""
        return Memory(dram(self.node).file(model), dram(self.node))

    def source(self, model: str) -> Memory:
        """The copy. UsageError: there is none."""
        if model not in self:
            raise UsageError(f"node {self.node} has no copy of {model} in its DRAM")
        return self.memory(model)

    def disk(self, model: str) -> Memory:
        """The model on this node's SSD."""
        return Memory(ssd(self.node).file(model), ssd(self.node))
