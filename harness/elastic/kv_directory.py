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

    __slots__ = ("interrupt", "over", "request_ids")

    def __init__(self, loop: Loop, request_ids: list[int]) -> None:
        self.interrupt, self.over = Event(loop), Event(loop)
        self.request_ids = request_ids


class KvDirectory:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.wheres: dict[int, Where] = {}  # request_id -> every holder of its KV
        self._running: dict[RunningBatch, None] = {}
        self._ids = set[int]()  # of all requests in these
        self._gates: dict[int, Event] = {}  # request_id -> set once its KV has moved

    def where(self, request: Request) -> Where:
        """Every holder of the request's KV, each page group once; (): nobody."""
        return self.wheres.get(request.request_id, ())

    def put(self, request: Request, where: Iterable[tuple[Holder, Groups]]) -> None:
        self.wheres[request.request_id] = tuple(where)

    def move(self, request: Request, groups: Groups, source: Holder, target: Holder) -> None:
        """`groups` of the request are `target`'s from now on."""
        gone, held = frozenset(groups), dict[int, tuple[Holder, list[int]]]()
        for holder, its in self.where(request) or ((source, source.kv.groups[request.request_id]),):
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

    async def begin(self, requests: Sequence[Request]) -> RunningBatch:
        """A batch, once no gate is closed. RunError where one of `requests` is in another one."""
        ids = [request.request_id for request in requests]
        if self._gates:
            await self._gates_open(ids)
        if not self._ids.isdisjoint(ids):
            twice = next(i for i in ids if i in self._ids)
            raise RunError(f"request {twice} is in two batches at once")
        running = RunningBatch(self._loop, ids)
        self._running[running] = None
        self._ids.update(ids)
        return running

    def end(self, running: RunningBatch) -> None:
        if running in self._running:
            del self._running[running]
            self._ids.difference_update(running.request_ids)
        running.over.set()

    def is_running(self, request: Request) -> bool:
        return request.request_id in self._ids

    def check_evictable(self, request: Request) -> None:
        """RunError where the request cannot be evicted now."""
        if self.is_running(request):
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
            while request_id in self._ids:
                running = next(each for each in self._running if request_id in each.request_ids)
                running.interrupt.set()
                await self._loop.wait(running.over)
        return gate

    def open_gates(self, gate: Event) -> None:
        for request_id in [r for r, each in self._gates.items() if each is gate]:
            del self._gates[request_id]
        gate.set()

    async def _gates_open(self, ids: Sequence[int]) -> None:
        """Waits until no gate of the requests is closed."""
        while self._gates and (closed := [self._gates[i] for i in ids if i in self._gates]):
            await self._loop.wait(closed[0])
