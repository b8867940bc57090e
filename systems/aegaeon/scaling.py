"""Preemptive auto-scaling of one instance (§5): switches from one model and its KV to another.

It starts from the sequence of Fig. 7 (T0). Each optimisation removes a part of it: component reuse
(T1, Fig. 8a), explicit memory management (T2, Fig. 8b) with prefetching, and fine-grained KV
synchronisation (T3, Fig. 10). `harness.pooled.instance` has the operations. Knows nothing of quotas
and queues: a scheduler says which model it wants, and the KV of which requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from harness.clock import Event, Loop
from harness.pooled.instance import PooledInstance
from harness.request import Request

NEEDS = {  # of an optimisation: what it needs, and why
    "explicit_memory": ("component_reuse", "its buffers outlive a switch"),
    "prefetch": ("explicit_memory", "it loads into the weights buffer"),
    "fine_grained_sync": ("component_reuse", "restarts lose KV"),
}


@dataclass(kw_only=True, slots=True)
class Optimisations:
    """`system.scaling`. All off is T0. Raises ValueError for combinations that make no sense."""

    component_reuse: bool  # §5.1: the engine lives on; off: it is restarted for every model
    explicit_memory: bool  # §5.2: weights go through the stage buffer into a buffer of our own
    prefetch: bool  # §5.2: the next model is loaded beside the running one if it fits
    fine_grained_sync: bool  # §5.3: KV moves request by request, beside all other work

    def __post_init__(self) -> None:
        for name, (needed, why) in NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise ValueError(f"{name}=true needs {needed}=true: {why}")


class Scaler:
    """Switches one instance between models.

    `wake` is set when something happens that a scheduler may wait for: weights are in place, a
    request's KV has arrived, or room for KV has come free. Schedulers set it too. `crowded`: what
    was asked for last did not begin, as host memory has no room for KV that would have to leave.
    prefetch_once: a model to prefetch is chosen only once after each switch; else at any time.
    """

    def __init__(
        self, instance: PooledInstance, loop: Loop, on: Optimisations, *, prefetch_once: bool
    ) -> None:
        self.instance = instance
        self.prefetch_once = prefetch_once
        self.crowded = False
        self.wake = Event(loop)
        self._loop = loop
        self._on = on
        self._here: dict[Request, None] = {}  # KV on the device or on its way in, oldest first
        self._arriving: dict[Request, Event] = {}
        self._num_leaving = 0
        self._switching = False
        self._may_choose = not prefetch_once
        self._short_of_room = False  # a scheduler waits for KV to leave

    def switch_to(self, model: str, keep: Collection[Request]) -> bool:
        """Whether `model` is in place, and all KV except that of `keep` has left or is leaving.

        If not, it begins what is missing, and `wake` is set when to ask again; or it is `crowded`.
        """
        self.crowded = False
        if self._switching or (not self._on.fine_grained_sync and self.room_is_coming()):
            return False
        kept, leaving = set(keep), []
        if not self._here.keys() <= kept:
            leaving = [r for r in self._here if not r.finished and r not in kept]
            if not self.may_save(leaving):
                return False
            self._here = {r: None for r in self._here if r in kept}
        if self.instance.model == model and not leaving:
            return True
        self._switching = True
        self._num_leaving += len(leaving)
        if self.instance.model != model:
            self.instance.begin_switch()
        self._loop.start(self._switch(model, leaving), name=f"{self.instance.name}: switch")
        return False

    async def _switch(self, model: str, leaving: Sequence[Request]) -> None:
        for request in leaving:  # a transfer ends before the next one of the same KV begins
            if request in self._arriving:
                await self._loop.wait(self._arriving[request])
        if self.instance.lost:  # meanwhile: by now others have what was to leave
            return
        saved = []
        for request in leaving:
            if self.instance.holds(request):
                saved.append(self._swap_out(request))
            else:  # lost with the device that it was to come from
                self._left()
        if not self._on.fine_grained_sync:
            for event in saved:
                await self._loop.wait(event)
        if self.instance.model != model:
            await self._load(model)
            self._may_choose = True
        self._switching = False
        self.wake.set()

    async def _load(self, model: str) -> None:
        if self.instance.prefetching == model:
            await self.instance.adopt()
            return
        if not self._on.explicit_memory:
            await self.instance.collect_garbage()
        if not self._on.component_reuse:
            await self.instance.restart()
        await self.instance.load(model, staged=self._on.explicit_memory)

    def prefetch(self, upcoming: Iterable[str]) -> None:
        """Begins to load the first of `upcoming` that is not the running model, if it fits."""
        if self._on.prefetch and self._may_choose:
            self._may_choose = not self.prefetch_once
            if self.instance.prefetching is not None:
                return  # there is room for one
            following = next((m for m in upcoming if m != self.instance.model), None)
            if following is not None and self.instance.can_prefetch(following):
                self.instance.prefetch(following)

    def settle(self, request: Request) -> None:
        """Tells that a prefill has left the request's KV on the device, where it stays for now."""
        self._here[request] = None

    def may_save(self, requests: Sequence[Request]) -> bool:
        """Takes room in host memory for the KV of `requests`, all of which the scheduler is to
        `save`; if there is too little it is `crowded`, and none is taken."""
        self.crowded = not self.instance.claim(requests)
        return not self.crowded

    def save(self, request: Request) -> Event:
        """Begins to swap the request's KV out, into the room that was taken for it. The event is
        set once the KV is in host memory."""
        self._here.pop(request, None)
        self._num_leaving += 1
        return self._swap_out(request)

    def _swap_out(self, request: Request) -> Event:
        return self.instance.swap_out(request, self._left)

    def _left(self) -> None:
        self._num_leaving -= 1
        if self._short_of_room:
            self._short_of_room = False
            self.wake.set()

    def bring_in(self, requests: Sequence[Request]) -> Request | None:
        """Begins to swap in the requests, oldest first, whose KV is not on the device.

        Returns the first request that has no room; None if all have room, or if room is about to
        come free, when `wake` is set. Without fine-grained synchronisation no KV moves before the
        weights are in place.
        """
        if self._switching and not self._on.fine_grained_sync:
            return None
        for request in requests:
            if request in self._here:
                continue
            arrived = self.instance.swap_in(request, partial(self._came, request))
            if arrived is None:
                return None if self.room_is_coming() else request
            self._here[request] = None
            self._arriving[request] = arrived
        return None

    def _came(self, request: Request) -> None:
        del self._arriving[request]
        if not self._switching:  # else it must wait for the weights
            self.wake.set()

    def forget(self, request: Request) -> None:
        """Tells that the request's KV is here no longer, nor on its way in."""
        self._here.pop(request, None)
        self._arriving.pop(request, None)
        self.wake.set()

    def ready(self, requests: Sequence[Request]) -> list[Request]:
        """The requests whose KV is here; without fine-grained synchronisation all or none."""
        here = [r for r in requests if r in self._here]
        if self._arriving:
            here = [r for r in here if r not in self._arriving]
        return here if self._on.fine_grained_sync or len(here) == len(requests) else []

    def room_is_coming(self) -> bool:
        """Whether KV is leaving the device. If so, `wake` is set when some of it has left."""
        self._short_of_room = self._num_leaving > 0
        return self._short_of_room

    def residents(self, model: str) -> list[Request]:
        """The requests of `model` whose KV is on the device or on its way in."""
        return [r for r in self._here if r.model == model]

    def newest(self) -> Request | None:
        """The newest request whose KV is here and not moving; None if there is none."""
        here = (r for r in reversed(self._here) if not r.finished and r not in self._arriving)
        return next(here, None)
