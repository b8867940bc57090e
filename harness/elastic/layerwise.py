"""A batch that runs through the layers a few at a time.

`LayerwiseBatch`, BlitzScale §5.2's ZigZag: who runs the next layers is decided when their turn
comes; between two runs of layers the batch rests, its activations where the last run was. Each
instance that runs layers keeps their KV. `LayerPass`, FlexGen's loop over layers (AQUA §9.1): one
iteration on one instance, where between two runs, and beside them, KV of other layers comes and
goes. The bookkeeping is written once; an engine supplies the `LayerwiseExecutor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import RunningBatch
from harness.elastic.shared import Shared
from harness.errors import RunError
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class LayerRun:
    """A run of `layers` of `batch` on `instance`. `previous`: who ran those before; None: these are
    the first. `others`: who else has KV of the batch, and must live. `sent`: the activations are
    here already, or on their way."""

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
    """Runs the layers of one batch."""

    async def run(self, run: LayerRun) -> None:
        """Runs the layers; the last run stamps the tokens and moves the requests' counters. Raises
        InstanceLost where `instance` or one of `others` has died."""

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        """Has the activations that rest at `source` go to `target`, ahead of the next run."""

    def end(self) -> None:
        """Ends the batch: nothing of it is needed any more."""


def _check_next(executed: int, instance: ElasticInstance, layers: range) -> None:
    """RunError for layers that are not the next ones, or not loaded."""
    if layers.start != executed:
        raise RunError(f"layers {layers} are run, but the next one is {executed}")
    missing = [layer for layer in layers if not instance.arrival(layer).is_set]
    if missing:
        raise RunError(f"{instance.name}: a batch needs layers that are not here: {missing}")


def _no_owner(request: Request) -> str:
    """Names no owner: the request's KV has no reservation."""
    return ""


class LayerwiseBatch:
    """A batch of prompts whose KV is nowhere yet."""

    def __init__(self, batch: Batch, executor: LayerwiseExecutor, shared: Shared) -> None:
        self._batch, self._executor = batch, executor
        self._shared, self._directory = shared, shared.directory
        if batch.decodes or any(r.computed_tokens or n != r.known_tokens for r, n in batch.chunks):
            raise RunError("a layerwise batch is of whole prompts that nothing is computed of")
        self.executed = 0  # layers, from the first one on
        self._over: list[ElasticInstance] = []  # that ran some, in order
        self._running: RunningBatch | None = None
        self._ahead: tuple[ElasticInstance, int] | None = None  # where activations have been sent
        self._busy = False

    @property
    def at(self) -> ElasticInstance | None:
        """The instance that has the activations."""
        return self._over[-1] if self._over else None

    def reserve(
        self, instance: ElasticInstance, layers: range, owner: Callable[[Request], str] = _no_owner
    ) -> bool:
        """Takes room for the KV of `layers` on `instance`, which is to run them next. `owner`:
        whose reservation there a request's KV uses first. False, and no change: there is none."""
        groups, kv = instance.layout.groups(layers), instance.kv
        if self.pages(instance, layers, owner) > kv.free_pages:
            return False
        for request in self._batch.requests:
            kv.accept(request, kv.blocks_for(request.known_tokens), groups, owner(request))
            others = [w for w in self._directory.where(request) if w[0] is not instance]
            self._directory.put(request, [*others, (instance, kv.groups[request.request_id])])
        return True

    def pages(
        self, instance: ElasticInstance, layers: range, owner: Callable[[Request], str] = _no_owner
    ) -> int:
        """The free pages that `reserve` needs there."""
        num_groups, kv, pages = len(instance.layout.groups(layers)), instance.kv, 0
        for request in self._batch.requests:
            needed = kv.blocks_for(request.known_tokens) * num_groups
            pages += max(0, needed - kv.reserved.get(owner(request), 0))
        return pages

    async def run(self, instance: ElasticInstance, layers: range) -> None:
        """Runs the next `layers` on `instance`, which `reserve` has room for. The batch ends with
        the last layer. Raises RunError for layers that are not the next ones or not loaded;
        InstanceLost where an instance with KV of the batch dies: `give_up` then."""
        for each in (*self._over, instance):
            each.check_alive()
        if self._busy:
            raise RunError(f"layers {layers} are run beside others of the batch")
        _check_next(self.executed, instance, layers)
        self._busy = True
        try:
            if self._running is None:
                await self._directory.opened(self._batch.requests)
                self._running = self._directory.begin(self._batch.requests)
            instance.check_alive()  # it may have died while KV of the batch was moved
            instance.join(self._running)
            previous = self.at
            if instance in self._over:
                self._over.remove(instance)
            self._over.append(instance)
            sent = self._ahead == (instance, self.executed)
            run = LayerRun(self._batch, instance, layers, previous, self._over[:-1], sent)
            await self._executor.run(run)
        finally:
            self._busy = False
        self.executed = layers.stop
        if run.last:
            self.give_up()
            self._complete()

    def send(self, target: ElasticInstance) -> None:
        """Sends the activations ahead to `target`, which is to run the next layers; another one may
        run them all the same. Does nothing where they are there, or have been sent."""
        source = self.at
        if source is None or source is target or self._ahead == (target, self.executed):
            return
        self._ahead = target, self.executed
        self._executor.send(self._batch, source, target)

    def give_up(self) -> None:
        """The batch is over, or to be computed again: its KV is the caller's to free."""
        self._executor.end()
        if self._running is not None:
            for instance in self._over:
                instance.leave(self._running)
            self._directory.end(self._running)

    def _complete(self) -> None:
        """Lets go of requests that are over, as those of one token are."""
        for request in self._batch.requests:
            if request.finished:
                self._directory.release(request)
                if not request.failed:
                    self._shared.recorder.completed(request)


class LayerPass:
    """One iteration of a batch, a few layers at a time. Who holds the KV is the caller's business:
    a run needs that of its own layers on the instance, and no other. `end` the pass when it is
    over, or given up."""

    def __init__(
        self, batch: Batch, instance: ElasticInstance, executor: LayerwiseExecutor, shared: Shared
    ) -> None:
        self._batch, self._instance, self._executor = batch, instance, executor
        self._directory, self._recorder = shared.directory, shared.recorder
        self.executed = 0  # layers, from the first one on

    async def run(self, layers: range) -> None:
        """Runs the next `layers`; with the last one the iteration's tokens are there. Raises
        RunError for layers that are not the next ones, not loaded, or whose KV is not here;
        InstanceLost where the instance dies."""
        instance = self._instance
        instance.check_alive()
        _check_next(self.executed, instance, layers)
        needed = set(instance.layout.groups(layers))
        for request in self._batch.requests:
            here = instance.kv.groups.get(request.request_id, ())
            if not needed <= set(here):
                raise RunError(
                    f"{instance.name}: layers {layers} need the KV of page groups "
                    f"{sorted(needed)} of request {request.request_id}; here are {list(here)}"
                )
        await self._directory.opened(self._batch.requests)
        running = instance.begin(self._batch.requests)
        try:
            previous = instance if self.executed else None
            run = LayerRun(self._batch, instance, layers, previous, (), sent=False)
            await self._executor.run(run)
        finally:
            instance.end(running)
        self.executed = layers.stop
        if run.last:
            for request in self._batch.requests:
                if request.finished and not request.failed:
                    self._recorder.completed(request)

    def end(self) -> None:
        """Ends the batch: nothing of it is needed any more."""
        self._executor.end()
