"""One iteration of a batch on one instance, a few layers at a time: between two pieces, and beside
them, KV of other layers comes and goes (FlexGen's loop over layers, AQUA §9.1).

The activations rest on the instance between pieces. Who holds the KV is the caller's business: a
piece needs that of its own layers on the instance, and no other.
"""

from __future__ import annotations

from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.elastic.layerwise import LayerRun, LayerwiseExecutor
from harness.errors import RunError
from harness.records.record import Recorder
from harness.request import Batch


class LayerPass:
    """`end` it when it is over, or given up."""

    def __init__(
        self, batch: Batch, instance: ElasticInstance, pieces: LayerwiseExecutor,
        directory: KvDirectory, recorder: Recorder,
    ) -> None:  # fmt: skip
        self._batch, self._instance, self._pieces = batch, instance, pieces
        self._directory, self._recorder = directory, recorder
        self.executed = 0  # layers, from the first one on

    async def run(self, layers: range) -> None:
        """The next `layers`; with the last one the iteration's tokens are there. Raises RunError
        for layers that are not the next ones, not loaded, or whose KV is not here; InstanceLost
        where the instance dies."""
        instance = self._instance
        instance.check_alive()
        if layers.start != self.executed:
            raise RunError(f"layers {layers} are run, but the next one is {self.executed}")
        missing = [layer for layer in layers if not instance.arrival(layer).is_set]
        if missing:
            raise RunError(f"{instance.name}: a batch needs layers that are not here: {missing}")
        needed = set(instance.layout.groups(layers))
        for request in self._batch.requests:
            here = instance.kv.groups.get(request.request_id, ())
            if not needed <= set(here):
                raise RunError(
                    f"{instance.name}: layers {layers} need the KV of page groups "
                    f"{sorted(needed)} of request {request.request_id}; here are {list(here)}"
                )
        flight = await instance.launch(self._batch.requests)
        try:
            previous = instance if self.executed else None
            piece = LayerRun(self._batch, instance, layers, previous, (), sent=False)
            await self._pieces.run(piece)
        finally:
            instance.land(flight)
        self.executed = layers.stop
        if piece.last:
            for request in self._batch.requests:
                if request.finished and not request.failed:
                    self._recorder.completed(request)

    def end(self) -> None:
        """Nothing of it is needed any more."""
        self._pieces.end()
