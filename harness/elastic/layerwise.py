"""A batch of prompts that runs through the layers a piece at a time (BlitzScale §5.2's ZigZag).

Who runs the next layers is decided when their turn comes: between two pieces the batch rests, its
activations where the last piece ran. Each instance that runs layers keeps their KV. The
bookkeeping is written once; an engine supplies the `LayerwiseExecutor` that run and send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.clock import Loop
from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import Flight, KvDirectory
from harness.errors import RunError
from harness.records.record import Recorder
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class LayerRun:
    """`layers` of `batch` on `instance`. `previous`: who ran those before; None: these are the
    first. `others`: who else has KV of the batch, and must live. `sent`: the activations are here
    already, or on their way."""

    batch: Batch
    instance: ElasticInstance
    layers: range
    previous: ElasticInstance | None
    others: Sequence[ElasticInstance]
    sent: bool

    @property
    def last(self) -> bool:
        return self.layers.stop == self.instance.model.num_layers


class LayerwiseExecutor(Protocol):
    """Of one passage."""

    async def run(self, piece: LayerRun) -> None:
        """Runs the piece; the last one stamps the tokens and moves the requests' counters. Raises
        InstanceLost where `instance` or one of `others` has died."""
        ...

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        """Has the activations that rest at `source` go to `target`, ahead of the next piece."""
        ...

    def end(self) -> None:
        """Nothing of the passage is needed any more."""
        ...


def nobody(request: Request) -> str:
    """Has no reservation."""
    return ""


class LayerwiseBatch:
    """Of prompts whose KV is nowhere yet."""

    def __init__(
        self,
        batch: Batch,
        pieces: LayerwiseExecutor,
        directory: KvDirectory,
        loop: Loop,
        recorder: Recorder,
    ) -> None:
        if batch.decodes or any(r.computed_tokens or n != r.known_tokens for r, n in batch.chunks):
            raise RunError("a passage is of whole prompts that nothing has been computed of")
        self._batch, self._pieces, self._directory = batch, pieces, directory
        self._loop, self._recorder = loop, recorder
        self.executed = 0  # layers, from the first one on
        self._over: list[ElasticInstance] = []  # that ran some, in order
        self._flight: Flight | None = None
        self._ahead: tuple[ElasticInstance, int] | None = None  # where activations have been sent
        self._running = False

    @property
    def at(self) -> ElasticInstance | None:
        """Who has the activations."""
        return self._over[-1] if self._over else None

    def reserve(
        self, instance: ElasticInstance, layers: range, owner: Callable[[Request], str] = nobody
    ) -> bool:
        """Takes room for the KV of `layers` on `instance`, which is to run them next. `owner`:
        whose reservation there a request's KV uses first. False, and no change: there is none."""
        groups, kv = instance.layout.groups(layers), instance.kv
        blocks = [kv.blocks_for(request.known_tokens) for request in self._batch.requests]
        pages = 0
        for request, count in zip(self._batch.requests, blocks, strict=True):
            pages += max(0, count * len(groups) - kv.reserved.get(owner(request), 0))
        if pages > kv.free_pages:
            return False
        for request, count in zip(self._batch.requests, blocks, strict=True):
            kv.accept(request, count, groups, owner(request))
            others = [w for w in self._directory.where(request) if w[0] is not instance]
            self._directory.put(request, [*others, (instance, kv.groups[request.request_id])])
        return True

    async def run(self, instance: ElasticInstance, layers: range) -> None:
        """The next `layers` on `instance`, which `reserve` has room for. The passage ends with the
        last layer. Raises RunError for layers that are not the next ones or not loaded;
        InstanceLost where an instance with KV of the batch dies: `give_up` then."""
        if self._running or layers.start != self.executed:
            raise RunError(f"layers {layers} are run, but the next one is {self.executed}")
        for each in (*self._over, instance):
            each.check_alive()
        missing = [layer for layer in layers if not instance.arrival(layer).is_set]
        if missing:
            raise RunError(f"{instance.name}: a batch needs layers that are not here: {missing}")
        self._running = True
        try:
            if self._flight is None:
                self._flight = await self._directory.launch(self._batch.requests)
            instance.check_alive()  # it may have died while KV of the batch was moved
            instance.join(self._flight)
            previous = self.at
            if instance in self._over:
                self._over.remove(instance)
            self._over.append(instance)
            piece = LayerRun(
                self._batch, instance, layers, previous, self._over[:-1],
                sent=self._ahead == (instance, self.executed),
            )  # fmt: skip
            await self._pieces.run(piece)
        finally:
            self._running = False
        self.executed = layers.stop
        if piece.last:
            self._land()
            self._complete()

    def send(self, target: ElasticInstance) -> None:
        """The activations go to `target` ahead, which is to run the next piece; another one may
        run it all the same. Nothing where they are there, or have been sent."""
        source = self.at
        if source is None or source is target or self._ahead == (target, self.executed):
            return
        self._ahead = target, self.executed
        self._pieces.send(self._batch, source, target)

    def give_up(self) -> None:
        """The batch is to be computed again: its KV is the caller's to free."""
        self._land()

    def _land(self) -> None:
        self._pieces.end()
        if self._flight is not None:
            for instance in self._over:
                instance.leave(self._flight)
            self._directory.land(self._flight)

    def _complete(self) -> None:
        """Requests of one token are over."""
        for request in self._batch.requests:
            if request.finished:
                for holder, _ in self._directory.where(request):
                    holder.kv.release(request)
                self._directory.forget(request)
                if not request.failed:
                    self._recorder.completed(request)


MakePieces = Callable[[], LayerwiseExecutor]


def layerwise_batch(
    requests: Sequence[Request], make: MakePieces, directory: KvDirectory, loop: Loop,
    recorder: Recorder,
) -> LayerwiseBatch:  # fmt: skip
    batch = Batch(chunks=[(request, request.known_tokens) for request in requests])
    return LayerwiseBatch(batch, make(), directory, loop, recorder)
