"""Who holds which layers of a request's KV, and which requests are in the air.

The one answer to both, for a cluster whose instances run layers together. A flight (one launch of
a batch) reads it once. KV moves between flights alone: whoever moves a request closes its gate,
halts its flight at the next step boundary, moves what is left and opens the gate again. So no
flight ever knows pages that are about to be freed, and none need wait for an epoch to pass.
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


class Flight:
    """`halt`: set to end it at its next step boundary. `landed`: it is over."""

    __slots__ = ("halt", "landed", "requests")

    def __init__(self, loop: Loop, requests: Sequence[Request]) -> None:
        self.halt, self.landed = Event(loop), Event(loop)
        self.requests = requests


class KvDirectory:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.wheres: dict[int, Where] = {}  # request_id -> every holder of its KV
        self._flights: dict[int, Flight] = {}  # request_id -> the one it is in
        self._gates: dict[int, Event] = {}  # request_id -> set once its KV has moved

    def where(self, request: Request) -> Where:
        """Every holder of the request's KV, each page group once; (): nobody."""
        return self.wheres.get(request.request_id, ())

    def holder(self, request: Request, group: int) -> Holder:
        for holder, groups in self.wheres.get(request.request_id, ()):
            if group in groups:
                return holder
        raise RunError(f"nobody holds page group {group} of request {request.request_id}")

    def put(self, request: Request, where: Iterable[tuple[Holder, Groups]]) -> None:
        self.wheres[request.request_id] = tuple(where)

    def move(self, request: Request, groups: Groups, source: Holder, target: Holder) -> None:
        """`groups` of the request are `target`'s from now on."""
        held: dict[int, tuple[Holder, list[int]]] = {}
        for holder, its in self.where(request) or ((source, source.kv.groups[request.request_id]),):
            for group in its:
                now = target if holder is source and group in groups else holder
                held.setdefault(id(now), (now, []))[1].append(group)
        self.put(request, [(holder, tuple(sorted(its))) for holder, its in held.values()])

    def forget(self, request: Request) -> None:
        self.wheres.pop(request.request_id, None)

    def check_settled(self, request: Request) -> None:
        """RunError where the request cannot be evicted now."""
        if self.in_air(request):
            raise RunError(f"request {request.request_id} is evicted in mid-batch")

    # Flights

    async def launch(self, requests: Sequence[Request]) -> Flight:
        """Begins a flight once no gate is closed. RunError where one is in the air already."""
        ids = [request.request_id for request in requests]
        while (shut := self._shut(ids)) is not None:
            await self._loop.wait(shut)
        for request in requests:
            if request.request_id in self._flights:
                raise RunError(f"request {request.request_id} is in two batches at once")
        flight = Flight(self._loop, requests)
        self._flights.update(dict.fromkeys([r.request_id for r in requests], flight))
        return flight

    def land(self, flight: Flight) -> None:
        for request in flight.requests:
            self._flights.pop(request.request_id, None)
        flight.landed.set()

    def gated(self, request: Request) -> bool:
        """Its KV is about to be elsewhere: a batch with it would wait."""
        return request.request_id in self._gates

    def in_air(self, request: Request) -> bool:
        return request.request_id in self._flights

    async def ground(self, request_ids: Iterable[int]) -> Event:
        """Closes the requests' gates and halts their flights; returns once all have landed. `open`
        opens them."""
        ids = list(request_ids)
        while (shut := self._shut(ids)) is not None:
            await self._loop.wait(shut)
        gate = Event(self._loop)
        self._gates.update(dict.fromkeys(ids, gate))
        for request_id in ids:
            while (flight := self._flights.get(request_id)) is not None:
                flight.halt.set()
                await self._loop.wait(flight.landed)
        return gate

    def _shut(self, ids: Sequence[int]) -> Event | None:
        if not self._gates:
            return None
        return next((gate for i in ids if (gate := self._gates.get(i)) is not None), None)

    def open(self, gate: Event) -> None:
        for request_id in [r for r, each in self._gates.items() if each is gate]:
            del self._gates[request_id]
        gate.set()
