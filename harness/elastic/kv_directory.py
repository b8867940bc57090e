"""Who holds which layers of a request's KV, and which requests are in a running batch.

The one answer to both, for a cluster whose instances run layers together. A running batch reads it
once, as it begins. KV moves between batches alone: whoever moves a request closes its gate,
interrupts its batch at the next step boundary, moves what is left and opens the gate again. So no
batch ever knows pages that are about to be freed, and none need wait for an epoch to pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from harness.clock import Event, Loop
from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Memory
from harness.elastic.page_pool import Groups, PagePool
from harness.elastic.page_tables import PageTables
from harness.errors import RunError
from harness.request import Request


class Holder(Protocol):
    """An instance's memory, or a store outside of it."""

    name: str
    memory: Memory
    kv: PagePool
    tables: PageTables | None  # None: places do not matter
    page_bytes: int  # of each device
    layout: DeviceLayout  # of the model whose KV it is


Where = tuple[tuple[Holder, Groups], ...]


class RunningBatch:
    """`interrupt`: set to end it at its next step boundary. `over`: it has ended."""

    __slots__ = ("interrupt", "over", "requests")

    def __init__(self, loop: Loop, requests: list[Request]) -> None:
        self.interrupt, self.over = Event(loop), Event(loop)
        self.requests = requests


class KvDirectory:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.wheres: dict[int, Where] = {}  # request_id -> every holder of its KV
        self._running: dict[RunningBatch, None] = {}
        self._gates: dict[int, Event] = {}  # request_id -> set once its KV has moved

    def where(self, request: Request) -> Where:
        """Every holder of the request's KV, each page group once; (): nobody."""
        return self.wheres.get(request.request_id, ())

    def put(self, request: Request, where: Iterable[tuple[Holder, Groups]]) -> None:
        self.wheres[request.request_id] = tuple(where)

    def move(self, request: Request, groups: Groups, source: Holder, target: Holder) -> None:
        """`groups` of the request are `target`'s from now on."""
        before = self.where(request) or ((source, source.kv.groups[request.request_id]),)
        if before == ((source, groups),):
            self.wheres[request.request_id] = ((target, groups),)
            return
        gone, held = frozenset(groups), dict[int, tuple[Holder, list[int]]]()
        for holder, its in before:
            together = holder is not source or gone.issuperset(its)
            for part in [its] if together else [(group,) for group in its]:
                now = target if holder is source and part[0] in gone else holder
                held.setdefault(id(now), (now, []))[1].extend(part)
        self.put(request, [(holder, tuple(sorted(its))) for holder, its in held.values()])

    def release(self, request: Request) -> None:
        """Frees the request's KV wherever it is, and forgets it."""
        for holder, _ in self.where(request):
            holder.kv.release(request)
        self.forget(request)

    def forget(self, request: Request) -> None:
        self.wheres.pop(request.request_id, None)

    # Running batches

    @property
    def closed(self) -> bool:
        """Whether a gate is closed: a batch may have to wait until its requests are `opened`."""
        return bool(self._gates)

    async def opened(self, requests: list[Request]) -> None:
        """Returns once no gate of `requests` is closed: before `begin`, where one is `closed`."""
        await self._gates_open([request.request_id for request in requests])

    def begin(self, requests: list[Request]) -> RunningBatch:
        """A batch of `requests`, a list of its own. RunError: one of them is in another one."""
        for request in requests:
            if request.in_batch:
                raise RunError(f"request {request.request_id} is in two batches at once")
        for request in requests:
            request.in_batch = True
        running = RunningBatch(self._loop, requests)
        self._running[running] = None
        return running

    def end(self, running: RunningBatch) -> None:
        if running in self._running:
            del self._running[running]
            for request in running.requests:
                request.in_batch = False
        running.over.set()

    def check_evictable(self, request: Request) -> None:
        """RunError where the request cannot be evicted now."""
        if request.in_batch:
            raise RunError(f"request {request.request_id} is evicted in mid-batch")

    # Gates, while KV moves

    def gated(self, request: Request) -> bool:
        """Whether the request's KV is about to be elsewhere: a batch with it would wait."""
        return request.request_id in self._gates

    async def close_gates(self, request_ids: Iterable[int]) -> Event:
        """Has no batch with the requests begin, and interrupts those that run; returns once all
        have ended. `open_gates` is to be given what this returns."""
        ids = list(request_ids)
        await self._gates_open(ids)
        gate = Event(self._loop)
        self._gates.update(dict.fromkeys(ids, gate))
        for request_id in ids:
            while running := self._running_with(request_id):
                running.interrupt.set()
                await self._loop.wait(running.over)
        return gate

    def _running_with(self, request_id: int) -> RunningBatch | None:
        for running in self._running:
            for request in running.requests:
                if request.request_id == request_id:
                    return running
        return None

    def open_gates(self, gate: Event) -> None:
        for request_id in [r for r, each in self._gates.items() if each is gate]:
            del self._gates[request_id]
        gate.set()

    async def _gates_open(self, ids: Sequence[int]) -> None:
        """Waits until no gate of the requests is closed."""
        while self._gates and (closed := [self._gates[i] for i in ids if i in self._gates]):
            await self._loop.wait(closed[0])
