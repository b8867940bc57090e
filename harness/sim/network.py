"""Moving bytes between places: what is modelled of links, queues, chunks and priorities.

A transfer is a row of messages: its chunks, or itself. A message takes α + size/β: the latency of
its path, during which it holds no bandwidth, then its bytes at the rate that it is given.

Within a channel (the transfers of one stream from one place to one other: a CUDA stream, an RDMA
queue pair) messages go one at a time. A message that has begun is never broken off; next goes the
transfer of the highest priority, first come first served within one. So an urgent transfer waits
for the rest of one message at most: for all of an unchunked transfer (head-of-line blocking), for
one chunk of a chunked one (KunServe §4.2). Small chunks cost α each (AQUA §7: gather small
tensors first).

Between channels bandwidth is fluid, as hardware arbitrates per packet: strict between priorities,
at once, and max–min fair within one (`fair_share.py`). A message that a more urgent one waits for
takes on its priority: otherwise third parties in between could hold both up.

A place may be several that act as one, the GPUs of a tensor-parallel group. What they send or
receive is striped: as many bytes for each, side by side, at the rate of the slowest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from math import ceil, inf, isclose

from harness.clock import Call, Event, Loop, Wait
from harness.device.location import Location, Place, members
from harness.device.topology import Link, Path, Topology
from harness.sim.fluid import Flow, Fluid

STALL = 1 << 30  # above every transfer's priority


class Channel:
    """Turns of the transfers from one place to another. A rank is (-priority, order of coming)."""

    def __init__(self, path: Path, loop: Loop) -> None:
        self.path = path
        self.flow: Flow | None = None  # the message under way, once its latency is over
        self._loop = loop
        self._busy = False
        self._waiting: list[tuple[tuple[int, int], Callable[[], None]]] = []

    @property
    def taken(self) -> bool:
        """Whether a transfer would have to wait for its turn."""
        return self._busy or bool(self._waiting)

    def take(self) -> bool:
        """Begins a turn at once. False, and no change: `enter` waits for it."""
        free = not self.taken
        if free:
            self._busy = True
        return free

    async def enter(self, rank: tuple[int, int]) -> None:
        """Returns when it is the turn of `rank`."""
        turn = Event(self._loop)
        self.queue(rank, turn.set)
        if not turn.is_set:
            await self._loop.wait(turn)

    def queue(self, rank: tuple[int, int], begin: Callable[[], None]) -> None:
        """Has `begin` called when it is the turn of `rank`."""
        heappush(self._waiting, (rank, begin))
        self.admit()

    def leave(self) -> None:
        """Ends a turn. Who comes next is decided by the next `enter` or `admit`."""
        self._busy = False

    def admit(self) -> None:
        if self._waiting and not self._busy:
            self._busy = True
            heappop(self._waiting)[1]()

    def at_least(self, priority: int) -> int:
        """`priority`, or that of the most urgent transfer which waits, if higher."""
        return max(priority, -self._waiting[0][0][0]) if self._waiting else priority


class Message:
    """A transfer of one message, without priority, that nobody breaks off. `on_end` is called once
    the last byte has arrived."""

    def __init__(
        self, channel: Channel, num_bytes: int, loop: Loop, fluid: Fluid, on_end: Callable[[], None]
    ) -> None:
        self._channel, self._num_bytes, self._on_end = channel, num_bytes, on_end
        self._loop, self._fluid = loop, fluid

    def begin(self) -> None:
        """Its turn has come."""
        latency_s = self._channel.path.latency_s
        if latency_s > 0:
            Call(self._loop, self._send, "message").at(self._loop.now + latency_s)
        else:
            self._send()

    def _send(self) -> None:
        channel = self._channel
        urgency = channel.at_least(0)
        channel.flow = self._fluid.start(channel.path.links, self._num_bytes, urgency, self._end)

    def _end(self) -> None:
        channel = self._channel
        channel.flow = None
        channel.leave()
        channel.admit()
        self._on_end()


class Network:
    def __init__(self, loop: Loop, topology: Topology) -> None:
        self._loop = loop
        self._topology = topology
        self.fluid = Fluid(loop)
        self._channels: dict[tuple[Place, Place, str], Channel] = {}
        self._order = count()

    def send(self, channel: Channel, num_bytes: int, on_end: Callable[[], None]) -> None:
        """Begins a transfer of one message without priority; `on_end` is called at its end."""
        rank = (0, next(self._order))
        message = Message(channel, num_bytes, self._loop, self.fluid, on_end)
        if channel.take():
            message.begin()
        else:
            channel.queue(rank, message.begin)

    async def transfer(
        self,
        src: Place,
        dst: Place,
        num_bytes: int,
        *,
        stream: str = "",
        priority: int = 0,
        chunk_bytes: int | None = None,
        pace: Link | None = None,
        stops: tuple[Event, ...] = (),
    ) -> bool:
        """Moves `num_bytes` (≥ 1; of each stripe), and returns when the last byte has arrived.

        Transfers of different streams do not wait for each other; they share the links. A higher
        `priority` goes first. With `chunk_bytes` the transfer is that many bytes a message, and
        gives way between them. `pace` is crossed too: what the sender's own work leaves of
        the links' rate. False: one of `stops` was set before, which breaks off the message
        under way.
        """
        assert num_bytes >= 1, num_bytes
        assert chunk_bytes is None or chunk_bytes >= 1, chunk_bytes
        channel = self.channel(src, dst, stream)
        links = channel.path.links if pace is None else (*channel.path.links, pace)
        rank = (-priority, next(self._order))
        arrived = 0
        while arrived < num_bytes:
            size = min(chunk_bytes or num_bytes, num_bytes - arrived)
            if channel.flow is not None and channel.flow.priority < priority:
                self.fluid.set_priority(channel.flow, priority)  # not slower than who waits for it
            if not channel.take():
                await channel.enter(rank)
            # The channel is this message's own until it has arrived, or was broken off.
            whole = not any(stop.is_set for stop in stops)
            if whole:
                if channel.path.latency_s > 0:
                    await self._loop.sleep(channel.path.latency_s)
                urgency, done = channel.at_least(priority), Event(self._loop)
                channel.flow = flow = self.fluid.start(links, size, urgency, done.set)
                await Wait((done, *stops), inf)
                whole = done.is_set
                if not whole:
                    self.fluid.cut(flow, ceil(flow.sent_bytes(self._loop.now)))
                    await self._loop.wait(done)
                channel.flow = None
            channel.leave()
            if not whole:
                break
            arrived += size
        channel.admit()
        return arrived == num_bytes

    async def transfer_until(
        self,
        stop: Event,
        src: Place,
        dst: Place,
        num_bytes: int,
        *,
        stream: str,
        chunk_bytes: int,
    ) -> bool:
        """Moves `num_bytes`, or less: once `stop` is set it ends with the chunk under way.

        Returns whether all have arrived. The chunks pay one latency together and give way to
        nobody: they are one message, of which the boundary where it ends has a closed form.
        """
        channel = self.channel(src, dst, stream)
        rank = (0, next(self._order))
        if not channel.take():
            await channel.enter(rank)
        if channel.path.latency_s > 0:
            await self._loop.sleep(channel.path.latency_s)
        done = Event(self._loop)
        channel.flow = flow = self.fluid.start(channel.path.links, num_bytes, 0, done.set)
        await self._loop.wait(done, stop)
        if not done.is_set:
            chunks = max(1, ceil(flow.sent_bytes(self._loop.now) / chunk_bytes))
            self.fluid.cut(flow, min(num_bytes, chunks * chunk_bytes))
            await self._loop.wait(done)
        channel.flow = None
        channel.leave()
        channel.admit()
        return flow.num_bytes == num_bytes

    async def stall(
        self, devices: Sequence[Location], others: Sequence[Location], for_s: float
    ) -> bool:
        """Has something of the highest priority fill the own links of `devices` to and from
        `others` for `for_s`. False: something else crossed them."""
        links = [link for each in devices for link in self._topology.ports(each, others)]
        before = [self.fluid.carried_bytes(link) for link in links]
        sizes = [ceil(for_s * link.bytes_per_s) for link in links]
        ends = [Event(self._loop) for _ in links]
        for link, size, end in zip(links, sizes, ends, strict=True):
            self.fluid.start((link,), size, STALL, end.set)
        for end in ends:
            await self._loop.wait(end)
        after = [self.fluid.carried_bytes(link) for link in links]
        return all(isclose(b - a, size) for a, b, size in zip(before, after, sizes, strict=True))

    def path(self, src: Place, dst: Place) -> Path:
        return self.channel(src, dst, "").path

    def channel(self, src: Place, dst: Place, stream: str) -> Channel:
        """The turns of the transfers of `stream` from `src` to `dst`."""
        channel = self._channels.get((src, dst, stream))
        if channel is None:
            stripes = [self._topology.path(a, b) for a, b in pairs(src, dst)]
            links = tuple(chain.from_iterable(path.links for path in stripes))
            latency_s = max(path.latency_s for path in stripes)
            channel = Channel(Path(links, latency_s), self._loop)
            self._channels[src, dst, stream] = channel
        return channel


def pairs(src: Place, dst: Place) -> list[tuple[Location, Location]]:
    """Pairs senders with receivers: between groups of one size rank to rank, else all to all."""
    senders, receivers = members(src), members(dst)
    if len(senders) == len(receivers):
        return list(zip(senders, receivers, strict=True))
    return [(a, b) for a in senders for b in receivers]
