"""Flows as fluid: each has a rate, which changes only when a flow begins, ends or gains urgency.

Between changes everything is closed form: what a flow has sent is rate x time, its end is known.
A change recomputes the rates of the flows that share a link with it, directly or through others,
once per instant, however many flows change there. One call waits for the earliest end.
Knows links, not places; chunks, queues and latency are the network's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from math import inf

from harness.clock import Call, Loop
from harness.device.topology import Link
from harness.sim.fair_share import fair_rates

KNOWN = 4096  # groups of flows of which the rates are kept, the latest


class Port:
    """A link with the flows that cross it. `touched`: they have changed since rates were shared;
    `met`: the last sharing that came past."""

    def __init__(self) -> None:
        self.flows: dict[Flow, None] = {}
        self.ended_bytes = 0
        self.touched = False
        self.met = 0


class Route:
    """Links, with their ports, that flows cross. `alone`: the rate of a flow that shares none."""

    def __init__(self, links: tuple[Link, ...], ports: list[Port]) -> None:
        self.links, self.ports = links, ports
        self.alone = fair_rates([(0, links)])[0]


class Flow:
    """`left_bytes` were still to be sent at `since_s`, and go at `rate` bytes/s from then on. Of a
    striped flow, which may cross a link several times, all counts are of one stripe. `on_end` is
    called at its end."""

    def __init__(
        self, route: Route, num_bytes: int, priority: int, since_s: float,
        on_end: Callable[[], None],
    ) -> None:  # fmt: skip
        self.route, self.num_bytes, self.priority, self.on_end = route, num_bytes, priority, on_end
        self.left_bytes, self.since_s = float(num_bytes), since_s
        self.rate, self.finish_s = 0.0, inf
        self.met = 0

    def sent_bytes(self, now: float) -> float:
        return self.num_bytes - self.left_bytes + self.rate * (now - self.since_s)

    def change_rate(self, rate: float, now: float) -> None:
        self.left_bytes = max(0.0, self.left_bytes - self.rate * (now - self.since_s))
        self.since_s, self.rate = now, rate
        self.finish_s = now + self.left_bytes / rate if rate > 0 else inf

    def change_size(self, num_bytes: int, now: float) -> None:
        self.left_bytes = max(0.0, num_bytes - self.sent_bytes(now))
        self.num_bytes, self.since_s = num_bytes, now
        self.finish_s = now + self.left_bytes / self.rate if self.rate > 0 else inf


class Fluid:
    """All flows under way."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._ports: dict[Link, Port] = {}
        self._routes: dict[tuple[Link, ...], Route] = {}
        self._num_flows = 0
        self._look = Call(loop, self._see_to_all, "network")
        self._touched: list[Port] = []
        self._sharings = 0
        self._finishes: list[tuple[float, int, Flow]] = []  # a heap; stale entries are skipped
        self._order = 0  # of the last entry
        self._rates: Callable[[tuple[tuple[int, tuple[Link, ...]], ...]], list[float]]
        self._rates = lru_cache(KNOWN)(fair_rates)

    def start(
        self, links: tuple[Link, ...], num_bytes: int, priority: int, on_end: Callable[[], None]
    ) -> Flow:
        """A flow from now on."""
        route = self._routes.get(links)
        if route is None:
            ports = [self._ports.setdefault(link, Port()) for link in links]
            route = self._routes[links] = Route(links, ports)
        flow = Flow(route, num_bytes, priority, self._loop.now, on_end)
        for port in route.ports:
            port.flows[flow] = None
        self._num_flows += 1
        self._touch(flow)
        self._look.soon()
        return flow

    def set_priority(self, flow: Flow, priority: int) -> None:
        """`flow`, which is under way, goes on with `priority`."""
        flow.priority = priority
        self._touch(flow)
        self._look.soon()

    def cut(self, flow: Flow, num_bytes: int) -> None:
        """`flow`, which is under way, ends once it has sent `num_bytes`: not less than it has."""
        flow.change_size(num_bytes, self._loop.now)
        self._queue(flow)
        self._look.soon()

    def busy(self, links: tuple[Link, ...]) -> bool:
        """Whether one of `links` carries a flow."""
        if not self._num_flows:
            return False
        return any(link in self._ports and self._ports[link].flows for link in links)

    def carried_bytes(self, link: Link) -> float:
        """What has crossed `link` so far: a counter, as a NIC has one."""
        port, now = self._ports.get(link), self._loop.now
        if port is None:
            return 0.0
        under_way = (flow.route.links.count(link) * flow.sent_bytes(now) for flow in port.flows)
        return port.ended_bytes + sum(under_way, 0.0)

    def _touch(self, flow: Flow) -> None:
        for port in flow.route.ports:
            if not port.touched:
                port.touched = True
                self._touched.append(port)

    def _see_to_all(self) -> None:
        """Sees to all ends and rates of this moment."""
        self._end_finished()
        self._share()
        self._look.at(self._next_finish_s())

    def _next_finish_s(self) -> float:
        heap = self._finishes
        while heap and heap[0][0] != heap[0][2].finish_s:
            heappop(heap)
        return heap[0][0] if heap else inf

    def _end_finished(self) -> None:
        now = self._loop.now
        while self._next_finish_s() <= now:
            _, _, flow = heappop(self._finishes)
            flow.finish_s = -inf  # no heap entry of it is valid any more
            for port in flow.route.ports:
                port.flows.pop(flow, None)  # a striped flow may cross it again
                port.ended_bytes += flow.num_bytes
            self._touch(flow)
            self._num_flows -= 1
            flow.on_end()

    def _share(self) -> None:
        """New rates for the flows that the touched links can affect."""
        flows = self._affected()
        if len(flows) == 1:
            self._give(flows[0], flows[0].route.alone)
        elif flows:
            rates = self._rates(tuple([(flow.priority, flow.route.links) for flow in flows]))
            for flow, rate in zip(flows, rates, strict=True):
                self._give(flow, rate)

    def _give(self, flow: Flow, rate: float) -> None:
        if rate != flow.rate:
            flow.change_rate(rate, self._loop.now)
            if rate > 0:
                self._queue(flow)

    def _queue(self, flow: Flow) -> None:
        self._order += 1
        heappush(self._finishes, (flow.finish_s, self._order, flow))

    def _affected(self) -> list[Flow]:
        """The flows connected to the touched links through shared links."""
        self._sharings += 1
        sharing = self._sharings
        ports, flows = list[Port](), list[Flow]()
        for port in self._touched:
            port.touched = False
            if port.flows:
                port.met = sharing
                ports.append(port)
        self._touched = []
        while ports:
            for flow in ports.pop().flows:
                if flow.met != sharing:
                    flow.met = sharing
                    flows.append(flow)
                    for port in flow.route.ports:
                        if port.met != sharing:
                            port.met = sharing
                            ports.append(port)
        return flows
