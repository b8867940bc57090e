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

from harness.clock import Event
from harness.elastic.layerwise import LayerwiseBatch
from harness.errors import InstanceLost
from harness.request import Request
from systems.blitzscale import zigzag
from systems.blitzscale.handover import kv_tokens, owner_of
from systems.blitzscale.instances import Role, Slot, State
from systems.blitzscale.schedulers import A_DOZEN, Limits
from systems.blitzscale.serving import Serving
from systems.blitzscale.timeline import PairTimes
from systems.blitzscale.zigzag import Queued, Step


@dataclass(slots=True, eq=False)
class Waiting(Queued):
    """A batch of the pair's queue. Its times are as profiled, and by the links' rates."""

    requests: Sequence[Request] = field(kw_only=True)
    layerwise: LayerwiseBatch = field(kw_only=True)
    # {slot: layers that found no room there, and how many free pages they need}
    refused: dict[Slot, tuple[range, int]] = field(default_factory=dict)


@dataclass(eq=False)
class LivePair:
    """Runs one live pair until both instances serve by themselves, or one of them dies."""

    source: Slot
    target: Slot
    ready_s: list[float]  # when each layer is expected at the target
    hop_s: Callable[[int], float]  # tokens -> seconds of their activations to the source
    limits: Limits
    serving: Serving

    def __post_init__(self) -> None:
        self._fleet, self._loop = self.serving.fleet, self.serving.fleet.loop
        self._layers = self._fleet.model.num_layers
        self._begun_s = self._loop.now
        self._wake = Event(self._loop)
        self._queue: list[Waiting] = []
        self._loaded = 0  # layers at the target, from the first one on
        while self._loaded in self.target.instance.resident:  # that came before the pair
            self._loaded += 1
        # A plan made again after a death expects these layers once more.
        early_s = max(0.0, self.ready_s[self._loaded - 1] - self._loop.now) if self._loaded else 0.0
        self.ready_s = [each - early_s for each in self.ready_s]
        self._planned = False
        self._taken: Waiting | None = None  # runs on the source, to its end
        self._running: Waiting | None = None  # one of its layers runs on the target
        self._source_free_s = self._fleet.batch_end_s(self.source)
        self._over = False

    @property
    def queued_tokens(self) -> int:
        """Tokens of prompts in the pair's queue."""
        return sum(request.known_tokens for batch in self._queue for request in batch.requests)

    async def run(self) -> None:
        """Runs the pair to its end."""
        for slot in (self.source, self.target):
            slot.paired, slot.pair = True, self._wake
        try:
            while not self._apart():
                self._wake.clear()
                self._see_layers()
                if zigzag.step(self._loaded, self._layers) is Step.REDISTRIBUTE:
                    self._redistribute()
                    if not (self.source.paired or self.target.paired):
                        return
                self._go_on()
                await self._loop.wait(self._wake)
        finally:
            self._break_up()

    def _apart(self) -> bool:
        """Whether one of the two has died, or has another role or state."""
        alive = (State.LOADING, State.SERVING, State.SHUTTING)
        return not (
            self.source.is_at(Role.PREFILL, State.SERVING, State.SHUTTING)
            and self.target.is_at(Role.PREFILL, *alive)
        )

    def _see_layers(self) -> None:
        """Notes the layers that have come. The others are then expected as much later or sooner."""
        now_s, resident = self._loop.now, self.target.instance.resident
        while self._loaded < self._layers and self._loaded in resident:
            k, late_s = self._loaded, now_s - self.ready_s[self._loaded]
            self.ready_s[k:] = [each + late_s for each in self.ready_s[k:]]
            self._loaded += 1
        k = self._loaded
        self.ready_s[k:] = [max(each, now_s) for each in self.ready_s[k:]]
        cooperates = zigzag.step(self._loaded, self._layers) is Step.COOPERATE
        if cooperates and self.limits.plans and not self._planned:
            self._planned = True
            self._loop.spawn(self._plan(), name=f"{self.limits.scheduler} of a live pair")

    async def _plan(self) -> None:
        """Finds limits for the batches that wait now. Until then the rules go on without limits."""
        while len(self._queue) < A_DOZEN and self._form() is not None:
            pass
        queued, now_s = list(self._queue), self._loop.now
        times = PairTimes(
            num_layers=self._layers,
            layer_s=tuple(batch.layer_s for batch in queued),
            ready_s=tuple(max(0.0, ready_s - now_s) for ready_s in self.ready_s),
            source_free_s=max(0.0, self._source_free_s - now_s),
            hop_s=tuple(batch.hop_s for batch in queued),
        )
        found = await self.limits.planned(times)
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
        far = self.hop_s(1) > 0
        batch = zigzag.source_next(self._queue, self._running, self._loaded, self._layers, hops=far)
        if batch is None and all(each.limit == self._layers for each in self._queue):
            if (self._loaded and not far and self._target_begins()) or not self._may_form():
                return
            batch = self._form()
        if batch is None or not self._reserve(batch, self.source, self._layers):
            return
        self._queue.remove(batch)
        self._taken = batch
        hop_s = batch.hop_s if batch.executed else 0.0
        work_s = (self._layers - batch.executed) * batch.layer_s
        self._source_free_s = self._loop.now + hop_s + work_s
        self._loop.spawn(self._run_on_source(batch), name="source of a live pair")

    def _target_runs(self) -> None:
        batch, until = self._target_next()
        if batch is None:
            return
        if not self._reserve(batch, self.target, until):
            if until < self._layers and batch.limit != batch.executed:
                batch.limit = batch.executed  # its KV has no room: the source runs the rest
                self._wake.set()
            return
        if not batch.executed and batch.limit is None:
            in_time = self._in_time(batch)
            batch.limit = self.limits.at_start(self._loaded, self._layers, in_time)
        self._running = batch
        if until == self._layers:
            self._queue.remove(batch)
        self._loop.spawn(self._run_on_target(batch, until), name="target of a live pair")

    def _target_next(self) -> tuple[Waiting | None, int]:
        """The target's next batch, from the queue, else from the prompts, and the end of the layers
        that it runs; None if there is none. The first batch may be left to the source."""
        if self._loaded == self._layers:  # only begun batches are left: `_redistribute`
            return next(iter(self._queue), None), self._layers
        while True:
            left = zigzag.left_to_source(self._queue, self._loop.now, self._source_free_s)
            batch = zigzag.target_next(self._queue, self._loaded, left)
            if batch is not None:
                return batch, batch.executed + 1
            if not (self._may_form() and self._target_begins()) or self._form() is None:
                return None, 0

    def _in_time(self, batch: Waiting) -> int | None:
        """How many layers of the first batch the target can run, so that its activations arrive
        when the source is free. None, no bound: another batch, or activations take no time."""
        if batch is not self._queue[0] or not batch.hop_s:
            return None
        left_s = self._source_free_s - self._loop.now - batch.hop_s
        return int(left_s / batch.layer_s)

    def _target_begins(self) -> bool:
        """Whether the target may take one more batch from the prompts."""
        if not self.serving.prompts.tokens or not self.limits.begins_later:
            return False
        under_way = sum(each.executed > 0 for each in self._queue) + (self._taken is not None)
        bound = self.limits.in_flight
        return bound is None or under_way < bound.after(self._loop.now - self._begun_s)

    def _may_form(self) -> bool:
        """Whether a batch may leave the prompts: one of the two loads, and the other stays."""
        return self._loaded < self._layers and self.source.state is State.SERVING

    def _send_ahead(self, first: Waiting) -> None:
        """Sends the batch that the source takes next while the source is busy, unless the target
        has time for another layer of it."""
        if 0 < first.executed < self._layers:
            next_s = max(self._loop.now, self.ready_s[first.executed])
            full = first.limit is not None and first.executed >= first.limit
            if full or next_s + first.hop_s > self._source_free_s:
                first.layerwise.send(self.source.instance)

    def _form(self) -> Waiting | None:
        """Takes the next batch from the prompts."""
        requests = self.serving.prompts.take(self._may_leave)
        if not requests:
            return None
        tokens = sum(request.known_tokens for request in requests)
        batch = Waiting(
            layer_s=self._fleet.profile.prefill_s(self._fleet.model, tokens) / self._layers,
            hop_s=self.hop_s(tokens),
            requests=requests,
            layerwise=self._fleet.cluster.layerwise(requests),
        )
        self._queue.append(batch)
        return batch

    def _may_leave(self, request: Request) -> bool:
        if self.source.role is not Role.COLOCATED:
            return True
        kv = self.source.instance.kv
        pages = kv.blocks_for(kv_tokens(request)) * len(kv.all_groups)
        return kv.reserve(pages, owner_of(request))

    def _reserve(self, batch: Waiting, slot: Slot, until: int) -> bool:
        """Takes room for the batch's next layers. What was refused is asked for again once so many
        pages are free."""
        layers, instance = range(batch.executed, until), slot.instance
        before, needed_pages = batch.refused.get(slot, (layers, 0))
        if slot.lost or (before == layers and instance.kv.free_pages < needed_pages):
            return False
        if batch.layerwise.reserve(instance, layers, owner_of):
            return True
        batch.refused[slot] = layers, batch.layerwise.pages(instance, layers, owner_of)
        return False

    # Runs on the two instances

    async def _run_on_source(self, batch: Waiting) -> None:
        await self._run(batch, self.source, self._layers)
        self._taken = None
        self._source_free_s = self._loop.now
        self._end_run(self.source)

    async def _run_on_target(self, batch: Waiting, until: int) -> None:
        done = await self._run(batch, self.target, until)
        self._running = None
        batch.executed = until
        if done and self._over and until < self._layers:
            self._give_up(batch)
        elif batch in self._queue and (until == self._layers or not done):
            self._queue.remove(batch)
        self._end_run(self.target)

    async def _run(self, batch: Waiting, slot: Slot, until: int) -> bool:
        """Hands the batch over behind the last layer. False if an instance has died; the batch is
        then in the prompts again."""
        try:
            await batch.layerwise.run(slot.instance, range(batch.executed, until))
        except InstanceLost:
            self._give_up(batch)
            return False
        if until == self._layers:
            self.serving.prefilled(batch.requests, slot)
        return True

    def _end_run(self, slot: Slot) -> None:
        if self._over:
            slot.leave_pair()
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
            if self._source_is_free() and self.source.paired:
                self.source.leave_pair()
            if self._running is None and self.target.paired:
                self.target.leave_pair()

    def _break_up(self) -> None:
        """Ends the pair. Batches that are not running now are computed again elsewhere."""
        self._over = True
        for batch in [each for each in self._queue if each is not self._running]:
            self._queue.remove(batch)
            self._give_up(batch)
        for slot, runs in ((self.source, self._taken), (self.target, self._running)):
            slot.pair = None
            if runs is None:
                slot.leave_pair()

    def _give_up(self, batch: Waiting) -> None:
        batch.layerwise.give_up()
        self.serving.recompute(batch.requests, self.source)

    def _put_back(self, batch: Waiting) -> None:
        """Returns a batch to the prompts of which nothing has been computed."""
        batch.layerwise.give_up()
        for request in batch.requests:
            self.serving.handover.free(request)
        self.serving.prompts.put(batch.requests)

    def _source_is_free(self) -> bool:
        return self._taken is None and self.source.batch is None
