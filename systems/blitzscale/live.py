"""A live pair (§5.2): an overloaded prefill (the source) and one that loads (the target) serve the
queue together.

step 1, no layer is there    the source takes whole batches
step 2, some layers are      batches begin on the target, a layer at a time, and go back into the
                             queue; the source takes the first one over when it is free (`zigzag`)
step 3, all layers are       each instance takes the next begun batch when it is free; then both
                             take batches from the prompts by themselves, and the pair ends

A batch that needs room in KV memory waits in the queue.

If both are colocated instances (§5.4), the source goes on decoding between its batches, and the
target decodes nothing before it has all layers. A batch takes room at the source, for prompts and
outputs, when it leaves the prompts. So KV that is split can always be collected there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.layerwise import LayerwiseBatch
from harness.errors import InstanceLost
from harness.placement import Profile
from harness.request import Request
from systems.blitzscale.handover import owner_of
from systems.blitzscale.limits import A_DOZEN, Limits
from systems.blitzscale.prompts import kv_tokens
from systems.blitzscale.protocol import Step, step
from systems.blitzscale.role import Role
from systems.blitzscale.serving import Serving
from systems.blitzscale.shutdown import State
from systems.blitzscale.slots import Slot
from systems.blitzscale.zigzag import Queued, left_to_source, source_next, target_next

ALIVE = (State.LOADING, State.SERVING, State.SHUTTING)


@dataclass(slots=True, eq=False)
class Waiting(Queued):
    """A batch of the pair's queue, and its progress."""

    requests: Sequence[Request] = field(kw_only=True)
    layerwise: LayerwiseBatch = field(kw_only=True)
    layer_s: float = field(kw_only=True)  # as profiled
    hop_s: float = field(kw_only=True)  # time of its activations to the source, by the links' rates


class Pair:
    """Runs one live pair until both instances serve by themselves, or one of them dies.

    ready_s: when each layer is expected at the target. hop_s: tokens -> seconds of their
    activations to the source. most: seconds since the pair began -> batches under way at once;
    None: as many as fit.
    """

    def __init__(
        self, source: Slot, target: Slot, ready_s: Sequence[float], limits: Limits,
        hop_s: Callable[[int], float], most: Callable[[float], int] | None, serving: Serving,
        cluster: ElasticCluster, profile: Profile, loop: Loop,
    ) -> None:  # fmt: skip
        self._source, self._target = source, target
        self._ready_s, self._limits, self._hop_s = list(ready_s), limits, hop_s
        self._most, self._begun_s = most, loop.now
        self._serving, self._cluster = serving, cluster
        self._profile, self._loop = profile, loop
        self._model = source.instance.model
        self._wake = Event(loop)
        self._queue: list[Waiting] = []
        self._number = 0
        self._loaded = 0  # layers at the target, from the first one on
        while self._loaded in target.instance.resident:  # that came before the pair
            self._loaded += 1
        if self._loaded:  # a plan made again after a death expects these layers once more
            early_s = max(0.0, self._ready_s[self._loaded - 1] - loop.now)
            self._ready_s = [each - early_s for each in self._ready_s]
        self._planned = False
        self._taken: Waiting | None = None  # runs on the source, to its end
        self._running: Waiting | None = None  # one of its layers runs on the target
        self._source_free_s = self._own_batch_end_s()
        self._over = False

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts in the pair's queue."""
        return sum(request.known_tokens for batch in self._queue for request in batch.requests)

    async def drive(self) -> None:
        """Runs the pair to its end."""
        for slot in (self._source, self._target):
            slot.paired, slot.pair = True, self._wake
        try:
            while not self._apart():
                self._wake.clear()
                self._see_layers()
                if step(self._loaded, self._model.num_layers) is Step.REDISTRIBUTE:
                    self._redistribute()
                    if not (self._source.paired or self._target.paired):
                        return
                self._go_on()
                await self._loop.wait(self._wake)
        finally:
            self._break_up()

    def _apart(self) -> bool:
        """Whether one of the two has died, or has another role or state."""
        return not (
            self._source.is_at(Role.PREFILL, State.SERVING, State.SHUTTING)
            and self._target.is_at(Role.PREFILL, *ALIVE)
        )

    def _see_layers(self) -> None:
        """Notes the layers that have come. The others are then expected as much later or sooner."""
        now_s, resident = self._loop.now, self._target.instance.resident
        while self._loaded < self._model.num_layers and self._loaded in resident:
            late_s = now_s - self._ready_s[self._loaded]
            for layer in range(self._loaded, self._model.num_layers):
                self._ready_s[layer] += late_s
            self._loaded += 1
        for layer in range(self._loaded, self._model.num_layers):
            self._ready_s[layer] = max(self._ready_s[layer], now_s)
        cooperates = step(self._loaded, self._model.num_layers) is Step.COOPERATE
        if cooperates and self._limits.plans and not self._planned:
            self._planned = True
            self._loop.spawn(self._plan(), name=f"{self._limits.scheduler} of a live pair")

    async def _plan(self) -> None:
        """Finds limits for the batches that wait now. Until then the rules go on without limits."""
        while len(self._queue) < A_DOZEN and self._form() is not None:
            pass
        queued, now_s = list(self._queue), self._loop.now
        found = await self._limits.planned(
            self._model.num_layers, [each.layer_s for each in queued],
            [ready_s - now_s for ready_s in self._ready_s], self._source_free_s - now_s,
            [each.hop_s for each in queued],
        )  # fmt: skip
        for batch, limit in zip(queued, found, strict=False):
            batch.limit = None if limit is None else max(limit, batch.executed)
        self._wake.set()

    # Which instance runs which batch next

    def _go_on(self) -> None:
        if self._source_is_free():
            self._source_takes()
        if self._running is None and self._loaded:
            self._target_runs()
        if self._taken is not None and self._queue and self._queue[0] is not self._running:
            self._send_ahead(self._queue[0])

    def _source_takes(self) -> None:
        far = self._hop_s(1) > 0
        layers = self._model.num_layers
        batch = source_next(self._queue, self._running, self._loaded, layers, hops=far)
        if batch is None and all(each.limit == layers for each in self._queue):
            if (self._loaded and not far and self._target_begins()) or not self._may_form():
                return
            batch = self._form()
        if batch is None or not self._reserve(batch, self._source, range(batch.executed, layers)):
            return
        self._queue.remove(batch)
        self._taken = batch
        hop_s = batch.hop_s if batch.executed else 0.0
        work_s = (layers - batch.executed) * batch.layer_s
        self._source_free_s = self._loop.now + hop_s + work_s
        self._loop.spawn(self._run_on_source(batch), name="source of a live pair")

    def _target_runs(self) -> None:
        layers = self._model.num_layers
        if self._loaded == layers:
            batch = next(iter(self._queue), None)  # only begun batches are left: `_redistribute`
            until = layers
        else:
            batch = self._target_next()
            until = 0 if batch is None else batch.executed + 1
        if batch is None:
            return
        if not self._reserve(batch, self._target, range(batch.executed, until)):
            if until < layers and batch.limit != batch.executed:
                batch.limit = batch.executed  # its KV has no room: the source runs the rest
                self._wake.set()
            return
        if not batch.executed and batch.limit is None:
            batch.limit = self._limits.at_start(self._loaded, layers, self._in_time(batch))
        self._running = batch
        if until == layers:
            self._queue.remove(batch)
        self._loop.spawn(self._run_on_target(batch, until), name="target of a live pair")

    def _target_next(self) -> Waiting | None:
        """The target's next batch, from the queue, else from the prompts; None if there is none.
        The first of the queue may be left to the source."""
        while True:
            first = self._queue[0] if self._queue else None
            hop_s = first.hop_s if first is not None else 0.0
            left = left_to_source(self._queue, self._loop.now, hop_s, self._source_free_s)
            batch = target_next(self._queue, self._loaded, left)
            if batch is not None or not (self._may_form() and self._target_begins()):
                return batch
            if self._form() is None:
                return None

    def _in_time(self, batch: Waiting) -> int | None:
        """How many layers of the first batch the target can run, so that its activations arrive
        when the source is free. None, no bound: another batch, or activations take no time."""
        if batch is not self._queue[0] or not batch.hop_s:
            return None
        left_s = self._source_free_s - self._loop.now - batch.hop_s
        return int(left_s / batch.layer_s)

    def _target_begins(self) -> bool:
        """Whether the target may take one more batch from the prompts."""
        if not len(self._serving.prompts) or not self._limits.begins_later:
            return False
        under_way = sum(each.executed > 0 for each in self._queue) + (self._taken is not None)
        most = None if self._most is None else self._most(self._loop.now - self._begun_s)
        return most is None or under_way < most

    def _may_form(self) -> bool:
        both_load = self._loaded < self._model.num_layers
        return both_load and self._source.state is State.SERVING

    def _send_ahead(self, first: Waiting) -> None:
        """Sends the batch that the source takes next while the source is busy, unless the target
        has time for another layer of it."""
        if 0 < first.executed < self._model.num_layers:
            next_s = max(self._loop.now, self._ready_s[first.executed])
            full = first.limit is not None and first.executed >= first.limit
            if full or next_s + first.hop_s > self._source_free_s:
                first.layerwise.send(self._source.instance)

    def _form(self) -> Waiting | None:
        requests = self._serving.prompts.take(self._may_leave)
        if not requests:
            return None
        tokens = sum(request.known_tokens for request in requests)
        batch = Waiting(
            self._number, requests=requests, layerwise=self._cluster.layerwise(requests),
            layer_s=self._profile.prefill_s(self._model, tokens) / self._model.num_layers,
            hop_s=self._hop_s(tokens),
        )  # fmt: skip
        self._number += 1
        self._queue.append(batch)
        return batch

    def _may_leave(self, request: Request) -> bool:
        if self._source.role is not Role.COLOCATED:
            return True
        kv = self._source.instance.kv
        pages = kv.blocks_for(kv_tokens(request)) * len(kv.all_groups)
        return kv.reserve(pages, owner_of(request))

    def _reserve(self, batch: Waiting, slot: Slot, layers: range) -> bool:
        return slot.instance.lost is None and batch.layerwise.reserve(
            slot.instance, layers, owner_of
        )

    # Runs on the two instances

    async def _run_on_source(self, batch: Waiting) -> None:
        layers = range(batch.executed, self._model.num_layers)
        if await self._run(batch, self._source, layers):
            self._serving.prefilled(batch.requests, self._source)
        self._taken = None
        self._source_free_s = self._loop.now
        self._end_run(self._source)

    async def _run_on_target(self, batch: Waiting, until: int) -> None:
        done = await self._run(batch, self._target, range(batch.executed, until))
        self._running = None
        batch.executed = until
        if done and until == self._model.num_layers:
            if batch in self._queue:
                self._queue.remove(batch)
            self._serving.prefilled(batch.requests, self._target)
        elif done and self._over:
            self._give_up(batch)
        elif not done and batch in self._queue:
            self._queue.remove(batch)
        self._end_run(self._target)

    async def _run(self, batch: Waiting, slot: Slot, layers: range) -> bool:
        """False if an instance has died; the batch is then in the prompts again."""
        try:
            await batch.layerwise.run(slot.instance, layers)
        except InstanceLost:
            self._give_up(batch)
            return False
        return True

    def _end_run(self, slot: Slot) -> None:
        if self._over:
            slot.paired = False
            slot.rouse()
        self._wake.set()

    # The end

    def _redistribute(self) -> None:
        """Step 3: batches that have not begun go back to the prompts, from which both take. Batches
        that have begun are run to their end by the instance that is free first."""
        for batch in [each for each in self._queue if not each.executed]:
            if batch is not self._running:
                self._queue.remove(batch)
                self._put_back(batch)
        for batch in self._queue:
            batch.limit = None
        if not self._queue:
            for slot, free in (
                (self._source, self._source_is_free()), (self._target, self._running is None),
            ):  # fmt: skip
                if free and slot.paired:
                    slot.paired = False
                    slot.rouse()

    def _break_up(self) -> None:
        """Ends the pair. Batches that are not running now are computed again elsewhere."""
        self._over = True
        for batch in [each for each in self._queue if each is not self._running]:
            self._queue.remove(batch)
            self._give_up(batch)
        for slot, free in (
            (self._source, self._taken is None), (self._target, self._running is None),
        ):  # fmt: skip
            slot.pair = None
            if free:
                slot.paired = False
                slot.rouse()

    def _give_up(self, batch: Waiting) -> None:
        batch.layerwise.give_up()
        self._serving.again(batch.requests, self._source)

    def _put_back(self, batch: Waiting) -> None:
        """Returns a batch to the prompts of which nothing has been computed."""
        batch.layerwise.give_up()
        for request in batch.requests:
            self._serving.handover.free(request)
        self._serving.prompts.put(batch.requests)

    def _source_is_free(self) -> bool:
        return self._taken is None and self._source.batch is None

    def _own_batch_end_s(self) -> float:
        """When the source ends the batch that it ran before the pair began, as profiled."""
        if self._source.batch is None:
            return self._loop.now
        since_s, tokens = self._source.batch
        return since_s + self._profile.prefill_s(self._model, tokens)
