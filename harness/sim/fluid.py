"""Flows as fluid: each has a rate, which changes only when a flow begins, ends or gains urgency.

Between changes everything is closed form: what a flow has sent is rate x time, its end is known.
A change recomputes the rates of the flows that share a link with it, directly or through others,
once per instant, however many flows change there. One task sleeps until their earliest end; a flow
that shares no link needs it not.
Knows links, not places; chunks, queues and latency are the network's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

from harness.clock import Event, Loop, Wait
from harness.device.topology import Link
from harness.sim.fair_share import fair_rates


class Flow:
    """`left_bytes` were still to be sent at `since_s`, and go at `rate` bytes/s from then on; until
    it begins, that is in the future. Of a striped flow, which may cross a link several times, all
    counts are of one stripe. `shared`: another has come to one of its links; else who has started
    it also ends it, at `finish_s`."""

    def __init__(
        self, links: tuple[Link, ...], num_bytes: int, priority: int, begin_s: float, done: Event
    ) -> None:
        self.links, self.num_bytes, self.priority = links, num_bytes, priority
        self.left_bytes, self.since_s, self.rate = float(num_bytes), begin_s, 0.0
        self.finish_s, self.done, self.shared = inf, done, False

    def sent_bytes(self, now: float) -> float:
        return self.num_bytes - self.left_bytes + self.rate * max(0.0, now - self.since_s)

    def change_rate(self, rate: float, now: float) -> None:
        if now > self.since_s:
            self.left_bytes = max(0.0, self.left_bytes - self.rate * (now - self.since_s))
            self.since_s = now
        self.rate = rate
        self._foresee()

    def change_size(self, num_bytes: int, now: float) -> None:
        self.left_bytes = max(0.0, num_bytes - self.sent_bytes(now))
        self.num_bytes, self.since_s = num_bytes, max(now, self.since_s)
        self._foresee()

    def _foresee(self) -> None:
        self.finish_s = self.since_s + self.left_bytes / self.rate if self.rate > 0 else inf


class Fluid:
    """All flows under way."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._on: defaultdict[Link, dict[Flow, None]] = defaultdict(dict)
        self._num_shared = 0  # flows under way that are
        self._ended_bytes: defaultdict[Link, int] = defaultdict(int)
        self._touched: dict[Link, None] = {}  # links whose flows changed since rates were shared
        self._changed = Event(loop)
        self._finishes: list[tuple[float, int, Flow]] = []  # a heap; stale entries are skipped
        self._begins: list[tuple[float, int, Flow]] = []  # of shared flows; a heap
        self._order = count()
        self._alone: dict[tuple[Link, ...], float] = {}  # the rate of a flow that shares no link

    def start(
        self, links: tuple[Link, ...], num_bytes: int, priority: int, latency_s: float = 0.0
    ) -> Flow:
        """A flow that begins in `latency_s`; who starts it waits for its end at once (`over`)."""
        now = self._loop.now
        flow = Flow(links, num_bytes, priority, now + latency_s, Event(self._loop))
        others = [other for link in links for other in self._on[link]]
        for link in links:
            self._on[link][flow] = None
        if others:
            for other in (flow, *others):
                self._manage(other)
            self._changed.set()
        else:
            flow.change_rate(self._alone_rate(links), now)
        return flow

    def _manage(self, flow: Flow) -> None:
        """Sees to the beginning and the end of `flow` from now on."""
        if not flow.shared:
            flow.shared = True
            if flow.since_s > self._loop.now:
                flow.change_rate(0.0, self._loop.now)
                heappush(self._begins, (flow.since_s, next(self._order), flow))
            elif flow.rate > 0:
                self._queue(flow)
            else:
                self._touch(flow)
            self._num_shared += 1
            if self._num_shared == 1:
                self._loop.spawn(self._drive(), name="network")

    async def over(self, flow: Flow, stops: tuple[Event, ...] = ()) -> bool:
        """Waits for the end of `flow`, or until one of `stops` is set. Whether it has ended."""
        events = (flow.done, *stops)
        while not flow.done.is_set:
            if await Wait(events, inf if flow.shared else flow.finish_s):
                break
            if not flow.shared:
                self._end(flow)
        return flow.done.is_set

    def set_priority(self, flow: Flow, priority: int) -> None:
        """`flow`, which is under way, goes on with `priority`."""
        flow.priority = priority
        if flow.shared:
            self._touch(flow)
            self._changed.set()

    def cut(self, flow: Flow, num_bytes: int) -> None:
        """`flow`, which is under way, ends once it has sent `num_bytes`: not less than it has."""
        flow.change_size(num_bytes, self._loop.now)
        if flow.shared:
            self._queue(flow)
            self._changed.set()

    def busy(self, links: tuple[Link, ...]) -> bool:
        """Whether one of `links` carries a flow."""
        now = self._loop.now
        return any(flow.since_s <= now for link in links for flow in self._on[link])

    def carried_bytes(self, link: Link) -> float:
        """What has crossed `link` so far: a counter, as a NIC has one."""
        now = self._loop.now
        under_way = (flow.links.count(link) * flow.sent_bytes(now) for flow in self._on[link])
        return self._ended_bytes[link] + sum(under_way, 0.0)

    def _touch(self, flow: Flow) -> None:
        for link in flow.links:
            self._touched[link] = None

    async def _drive(self) -> None:
        """Runs while flows share links; `_manage` spawns it again."""
        while self._num_shared:
            begins = self._begins
            until = min(self._next_finish_s(), begins[0][0] if begins else inf)
            await self._loop.wait(self._changed, until=until)
            self._changed.clear()
            self._end_finished()
            while begins and begins[0][0] <= self._loop.now:
                self._touch(heappop(begins)[2])
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
            self._touch(flow)
            self._num_shared -= 1
            self._end(flow)

    def _end(self, flow: Flow) -> None:
        flow.finish_s = -inf  # no heap entry of it is valid any more
        for link in flow.links:
            self._on[link].pop(flow, None)
            self._ended_bytes[link] += flow.num_bytes
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
                self._queue(flow)

    def _queue(self, flow: Flow) -> None:
        if flow.rate > 0:
            heappush(self._finishes, (flow.finish_s, next(self._order), flow))

    def _rates(self, flows: Sequence[Flow]) -> Sequence[float]:
        if len(flows) > 1:
            return fair_rates([(flow.priority, flow.links) for flow in flows])
        return (self._alone_rate(flows[0].links),)

    def _alone_rate(self, links: tuple[Link, ...]) -> float:
        rate = self._alone.get(links)
        if rate is None:
            (rate,) = fair_rates([(0, links)])
            self._alone[links] = rate
        return rate

    def _affected(self) -> list[Flow]:
        """The flows connected to the touched links through shared links."""
        now, links = self._loop.now, [link for link in self._touched if self._on[link]]
        if not links:
            return []
        seen = set(links)
        flows: dict[Flow, None] = {}
        while links:
            for flow in self._on[links.pop()]:
                if flow not in flows and flow.since_s <= now:
                    flows[flow] = None
                    for link in flow.links:
                        if link not in seen:
                            seen.add(link)
                            links.append(link)
        return list(flows)
