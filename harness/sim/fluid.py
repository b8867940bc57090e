"""Flows as fluid: each has a rate, which changes only when a flow begins, ends or gains urgency.

Between changes everything is closed form: what a flow has sent is rate x time, its end is known.
A change recomputes the rates of the flows that share a link with it, directly or through others,
once per instant, however many flows change there. One task sleeps until the earliest end.
Knows links, not places; chunks, queues and latency are the network's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf

from harness.clock import Event, Loop
from harness.device.topology import Link
from harness.sim.fair_share import fair_rates


@dataclass(slots=True, eq=False)
class Flow:
    """`left_bytes` were still to be sent at `since_s`, and go at `rate` bytes/s from then on. Of a
    striped flow, which may cross a link several times, all counts are of one stripe."""

    links: tuple[Link, ...]
    num_bytes: int
    priority: int
    left_bytes: float
    since_s: float
    done: Event
    rate: float = 0.0
    finish_s: float = inf

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
        self._on: defaultdict[Link, dict[Flow, None]] = defaultdict(dict)
        self._num_flows = 0
        self._ended_bytes: defaultdict[Link, int] = defaultdict(int)
        self._touched: dict[Link, None] = {}  # links whose flows changed since rates were shared
        self._changed = Event(loop)
        self._finishes: list[tuple[float, int, Flow]] = []  # a heap; stale entries are skipped
        self._order = count()
        self._alone: dict[tuple[Link, ...], float] = {}  # the rate of a flow that shares no link

    def start(self, links: tuple[Link, ...], num_bytes: int, priority: int) -> Flow:
        """A flow from now on; `flow.done` is set at its end."""
        now, done = self._loop.now, Event(self._loop)
        flow = Flow(links, num_bytes, priority, float(num_bytes), now, done)
        for link in links:
            self._on[link][flow] = None
        self._num_flows += 1
        if self._num_flows == 1:
            self._loop.spawn(self._drive(), name="network")
        self._touch(flow)
        return flow

    def set_priority(self, flow: Flow, priority: int) -> None:
        """`flow`, which is under way, goes on with `priority`."""
        flow.priority = priority
        self._touch(flow)

    def cut(self, flow: Flow, num_bytes: int) -> None:
        """`flow`, which is under way, ends once it has sent `num_bytes`: not less than it has."""
        flow.change_size(num_bytes, self._loop.now)
        heappush(self._finishes, (flow.finish_s, next(self._order), flow))
        self._changed.set()

    def busy(self, links: tuple[Link, ...]) -> bool:
        """Whether one of `links` carries a flow."""
        return self._num_flows > 0 and any(self._on[link] for link in links)

    def carried_bytes(self, link: Link) -> float:
        """What has crossed `link` so far: a counter, as a NIC has one."""
        now = self._loop.now
        under_way = (flow.links.count(link) * flow.sent_bytes(now) for flow in self._on[link])
        return self._ended_bytes[link] + sum(under_way, 0.0)

    def _touch(self, flow: Flow) -> None:
        for link in flow.links:
            self._touched[link] = None
        self._changed.set()

    async def _drive(self) -> None:
        """Runs while there are flows; `start` spawns it again."""
        while self._num_flows:
            if not self._changed.is_set:
                await self._loop.wait(self._changed, until=self._next_finish_s())
            self._changed.clear()
            self._end_finished()
            self._share()

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
            for link in flow.links:
                self._on[link].pop(flow, None)
                self._ended_bytes[link] += flow.num_bytes
                self._touched[link] = None
            self._num_flows -= 1
            flow.done.set()

    def _share(self) -> None:
        """New rates for the flows that the touched links can affect."""
        flows = self._affected()
        self._touched.clear()
        if not flows:
            return
        now = self._loop.now
        for flow, rate in zip(flows, self._rates(flows), strict=True):
            if rate != flow.rate:
                flow.change_rate(rate, now)
                if rate > 0:
                    heappush(self._finishes, (flow.finish_s, next(self._order), flow))

    def _rates(self, flows: Sequence[Flow]) -> Sequence[float]:
        if len(flows) > 1:
            return fair_rates([(flow.priority, flow.links) for flow in flows])
        links = flows[0].links
        if links not in self._alone:
            (self._alone[links],) = fair_rates([(0, links)])
        return (self._alone[links],)

    def _affected(self) -> list[Flow]:
        """The flows connected to the touched links through shared links."""
        links = [link for link in self._touched if self._on[link]]
        if not links:
            return []
        seen = set(links)
        flows: dict[Flow, None] = {}
        while links:
            for flow in self._on[links.pop()]:
                if flow not in flows:
                    flows[flow] = None
                    for link in flow.links:
                        if link not in seen:
                            seen.add(link)
                            links.append(link)
        return list(flows)
