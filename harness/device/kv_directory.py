"""Who holds which layers of a request's KV, and which requests are in the air.

The one answer to both, for a cluster whose instances run layers together. A flight (one launch of
a batch) reads it once. KV moves between flights alone: whoever moves a request closes its gate,
halts its flight at the next step boundary, moves what is left and opens the gate again. So no
flight ever knows pages that are about to be freed, and none need wait for an epoch to pass.

KV that comes in a gated move is the target's while it is on its way (`arrivals`). A flight that can
wait for each page group begins at once; all others, and whoever moves it on, wait for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from harness.clock import Event, Loop
from harness.device.device_layout import DeviceLayout
from harness.device.fabric import Memory
from harness.device.kv_arrivals import KvArrival
from harness.device.page_pool import Groups, PagePool
from harness.device.page_tables import PageTables
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
        self.arrivals: dict[int, KvArrival] = {}  # request_id -> its KV on its way, or lost on it

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
        arrival = self.arrivals.get(request.request_id)
        if arrival is not None and arrival.over.is_set:
            del self.arrivals[request.request_id]

    # KV on its way

    def expect(self, arrival: KvArrival) -> None:
        self.arrivals.update(dict.fromkeys(arrival.request_ids, arrival))

    def end(self, arrival: KvArrival) -> None:
        """Nothing of it is under way any more. Where it was lost, its requests' KV is, until
        they are forgotten."""
        for request_id in arrival.request_ids:
            if arrival.lost is None or request_id not in self.wheres:
                del self.arrivals[request_id]
        arrival.over.set()

    def arriving(self, requests: Iterable[Request]) -> list[KvArrival]:
        """What of the requests' KV is not here yet. InstanceLost where some never comes."""
        if not self.arrivals:
            return []
        found: dict[KvArrival, None] = {}
        for request in requests:
            arrival = self.arrivals.get(request.request_id)
            if arrival is not None:
                if arrival.lost is not None:
                    raise arrival.lost
                if not arrival.is_whole:
                    found[arrival] = None
        return list(found)

    async def whole(self, requests: Sequence[Request]) -> None:
        """Returns once all of the requests' KV is where it is said to be. InstanceLost where some
        never comes."""
        while (late := self._late([r.request_id for r in requests])) is not None:
            await self._loop.wait(late)
        self.arriving(requests)

    def check_settled(self, request: Request) -> None:
        """RunError where the request cannot be evicted now."""
        if self.in_air(request):
            raise RunError(f"request {request.request_id} is evicted in mid-batch")
        if self._late([request.request_id]) is not None:
            raise RunError(f"request {request.request_id} is evicted while its KV is on its way")

    # Flights

    async def launch(self, requests: Sequence[Request], *, by_group: bool = False) -> Flight:
        """Begins a flight once no gate is closed, and the requests' KV is there; `by_group`: the
        flight itself waits for each page group. RunError where one is in the air already,
        InstanceLost where KV was lost on its way."""
        while True:
            ids = [request.request_id for request in requests]
            if (shut := self._shut(ids)) is not None:
                await self._loop.wait(shut)
            elif not by_group and (late := self._late(ids)) is not None:
                await self._loop.wait(late)
            else:
                break
        self.arriving(requests)
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
        """Closes the requests' gates and halts their flights; returns once all have landed, and
        KV that was on its way has come or is lost. `open` opens them."""
        ids = list(request_ids)
        while (shut := self._shut(ids)) is not None:
            await self._loop.wait(shut)
        gate = Event(self._loop)
        self._gates.update(dict.fromkeys(ids, gate))
        await self.down(ids)
        while (late := self._late(ids)) is not None:
            await self._loop.wait(late)
        return gate

    async def down(self, request_ids: Iterable[int]) -> None:
        """Halts the requests' flights; returns once all have landed."""
        for request_id in request_ids:
            while (flight := self._flights.get(request_id)) is not None:
                flight.halt.set()
                await self._loop.wait(flight.landed)

    def _shut(self, ids: Sequence[int]) -> Event | None:
        if not self._gates:
            return None
        return next((gate for i in ids if (gate := self._gates.get(i)) is not None), None)

    def _late(self, ids: Sequence[int]) -> Event | None:
        for request_id in ids if self.arrivals else ():
            arrival = self.arrivals.get(request_id)
            if arrival is not None and not arrival.over.is_set:
                return arrival.over
        return None

    def open(self, gate: Event) -> None:
        for request_id in [r for r, each in self._gates.items() if each is gate]:
            del self._gates[request_id]
        gate.set()
