"""Copies of models' weights in a node's DRAM: which there are is the system's to decide.

ServerlessLLM's caches and BlitzScale §4's parameter pool are policies over this. The SSD has every
model.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.clock import Event, Loop
from harness.device.location import dram, ssd
from harness.device.memory import Region
from harness.elastic.device_layout import layer_weight_bytes
from harness.elastic.fabric import Fabric, Memory, Span
from harness.elastic.instance import ElasticInstance
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.records.record import Recorder


class HostCopies:
    def __init__(
        self, node: int, capacity_bytes: int, models: Mapping[str, ModelSpec], fabric: Fabric,
        loop: Loop, recorder: Recorder,
    ) -> None:  # fmt: skip
        self.node = node
        self.region = Region(f"DRAM of node {node}", capacity_bytes)
        # As instances name them, and as requests do: two models may have one spec's name.
        self._models = {spec.name: spec for spec in models.values()} | dict(models)
        self.lost = False  # it has failed
        self._fabric = fabric
        self._loop, self._recorder = loop, recorder
        self._complete = set[str]()

    def __contains__(self, model: str) -> bool:
        return model in self._complete

    def keep(self, model: str) -> None:
        """Has the copy be there, as at the start of a run. OutOfMemory: it does not fit."""
        self.region.hold({model: weight_bytes(self._models[model])})
        self._complete.add(model)

    async def fetch(
        self, model: str, source: ElasticInstance | Memory, *, stop: Event | None = None
    ) -> bool:
        """Copies `model` here, from an instance that has all of it, another node's DRAM or an
        SSD. False: `stop` broke it off, or the host has failed. OutOfMemory: it does not fit."""
        spec = self._models[model]
        self.region.hold({model: weight_bytes(spec)})
        start_s, done = self._loop.now, False
        try:
            memory = source.memory if isinstance(source, ElasticInstance) else source
            done = await self._fabric.copy(
                memory, self.memory(model), weight_bytes(spec) // spec.tp,
                lambda: file_spans(source, spec), purpose="weights", stop=stop,
            )  # fmt: skip
            done = done and not self.lost
        finally:
            if done:
                self._complete.add(model)
            else:
                self.region.hold({model: 0})
            self._recorder.event(
                "host_copy", f"node-{self.node}", start_s, self._loop.now,
                model=model, complete=done, bytes=weight_bytes(spec),
            )  # fmt: skip
        return done

    def drop(self, model: str) -> None:
        self._complete.discard(model)
        self.region.hold({model: 0})

    def fail(self) -> None:
        """All that is here is lost."""
        self.lost = True
        for model in list(self._complete):
            self.drop(model)

    def memory(self, model: str) -> Memory:
        """Of the copy, as a source of `ElasticInstance.load`."""
        return Memory(f"dram{self.node}:{model}", dram(self.node))

    def source(self, model: str) -> Memory:
        """The copy. UsageError: there is none."""
        if model not in self:
            raise UsageError(f"node {self.node} has no copy of {model} in its DRAM")
        return self.memory(model)

    def disk(self, model: str) -> Memory:
        """The model on this node's SSD."""
        return Memory(f"ssd{self.node}:{model}", ssd(self.node))


def weight_bytes(spec: ModelSpec) -> int:
    """Of all devices of an instance together, as layers are kept."""
    return spec.tp * sum(layer_weight_bytes(spec, layer) for layer in range(spec.num_layers))


def file_spans(source: ElasticInstance | Memory, spec: ModelSpec) -> list[Span]:
    """The whole model, as files hold it."""
    size = weight_bytes(spec) // spec.tp
    start = source.layout.layer_at[0].start if isinstance(source, ElasticInstance) else 0
    return [Span(start, 0, size)]
