"""The bytes of elastic instances in virtual time, over the links of `harness.sim.network`, and the
end of instances that are killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from harness.clock import Event, Loop
from harness.device.location import Location, Place
from harness.device.topology import Link, Path
from harness.elastic.fabric import Memory, Sending, Span
from harness.errors import InstanceLost
from harness.sim.network import Network

# A copy of more chunks goes as one message at their mean rate, which ends when they would on a link
# of its own, and shares a link with others at that rate. An urgent copy of the same purpose then
# waits for all of it.
MANY_CHUNKS = 4096
# Copies in chunks and activations between two instances share one queue, which the activations
# lead (KunServe §4.2). Other copies have a queue for each purpose beside it.
IN_TURN = "activations"


def mean_pace(path: Path, num_bytes: int, chunk_bytes: int) -> Link:
    """The rate at which one message of `num_bytes`, after one latency, takes as long as all of its
    chunks with a latency each."""
    messages = ceil(num_bytes / chunk_bytes)
    time_s = (messages - 1) * path.latency_s + num_bytes / alone(path)
    return Link("chunks", num_bytes / time_s)


def issued_pace(path: Path, num_bytes: int, chunk_bytes: int, issue_s: float) -> Link:
    """The rate of copies of `chunk_bytes` that are issued one behind another: each takes the time
    to issue it or its bytes' time, whichever is longer, and only the first one its latency."""
    return Link("issues", min(chunk_bytes, num_bytes) / max(issue_s, chunk_bytes / alone(path)))


def alone(path: Path) -> float:
    """Bytes/s of a message that shares no link."""
    return min(link.bytes_per_s / path.links.count(link) for link in path.links)


def names(ends: tuple[Memory, Memory]) -> list[str]:
    """Of all instances and files that the two ends of a copy are made of."""
    return [end.name for memory in ends for end in memory.owners]


class SimFabric:
    """`notice_s`: from an instance's death until those who wait for it are told."""

    places_matter = False
    paced = True

    def __init__(
        self, loop: Loop, network: Network, hbm_bytes_per_s: float, notice_s: float
    ) -> None:
        self.network = network
        self._loop, self._hbm_bytes_per_s, self._notice_s = loop, hbm_bytes_per_s, notice_s
        self._ends: dict[Event, tuple[Memory, Memory]] = {}  # copies: set when an end dies
        self._lost: dict[str, Event] = {}  # the dead -> set once that is known
        self.interrupt: dict[
            str, Callable[[], None]
        ] = {}  # instance -> ends its batches' next step
        # instance -> told on which of its devices copies read and write, and how many bytes/s
        # more, or less, on each
        self.beside: dict[str, Callable[[Place, float], None]] = {}
        self.on_lost: Callable[[str, str], None]
        self.on_host_lost: Callable[[int], None]

    async def copy(
        self, source: Memory, target: Memory, num_bytes: int,
        spans: Callable[[], Sequence[Span]], sending: Sending,
    ) -> bool:  # fmt: skip
        if source.place == target.place:  # every byte is read and written once
            await self._loop.sleep(2 * num_bytes / self._hbm_bytes_per_s)
            return True
        ends = source, target
        if self._lost:
            await self.require(*names(ends))
        cut, stop = Event(self._loop), sending.stop
        self._ends[cut] = ends
        chunk_bytes = sending.chunk_bytes
        pace: Link | None = None
        if chunk_bytes is not None:
            path = self.network.path(source.place, target.place)
            if sending.issue_s is not None:
                pace, chunk_bytes = issued_pace(path, num_bytes, chunk_bytes, sending.issue_s), None
            elif num_bytes > MANY_CHUNKS * chunk_bytes:
                pace, chunk_bytes = mean_pace(path, num_bytes, chunk_bytes), None
        if self.beside:
            self._tell_beside(ends, pace, 1)
        try:
            done = await self.network.transfer(
                source.place, target.place, num_bytes,
                stream=sending.purpose if chunk_bytes is None else IN_TURN,
                priority=sending.priority, chunk_bytes=chunk_bytes, pace=pace,
                stops=(cut,) if stop is None else (cut, stop),
            )  # fmt: skip
        finally:
            del self._ends[cut]
            if self.beside:
                self._tell_beside(ends, pace, -1)
        if self._lost:
            await self.require(*names(ends))
        return done

    def _tell_beside(self, ends: tuple[Memory, Memory], pace: Link | None, sign: int) -> None:
        """A copy between `ends` begins, or ends with `sign` -1."""
        told = [end for memory in ends for end in memory.owners if end.name in self.beside]
        if told:
            path = self.network.path(ends[0].place, ends[1].place)
            rate = sign * (alone(path) if pace is None else pace.bytes_per_s)
            for end in told:
                self.beside[end.name](end.place, rate)

    async def load(
        self, source: Memory, target: Memory, layers: Mapping[int, Span],
        arrival: Callable[[int], Event] | None, on_layer: Callable[[int, float], None],
        stop: Event | None,
    ) -> bool:  # fmt: skip
        for layer, span in layers.items():
            if arrival is not None:
                await self._wait(arrival(layer), source, target, stop)
            if stop is not None and stop.is_set:
                return False
            start_s, sending = self._loop.now, Sending("weights", stop=stop)
            if not await self.copy(source, target, span.num_bytes, list, sending):
                return False
            on_layer(layer, start_s)
        return True

    async def _wait(
        self, arrival: Event, source: Memory, target: Memory, stop: Event | None
    ) -> None:
        """Waits until the source has a layer; raises InstanceLost where an end dies before."""
        cut = Event(self._loop)
        self._ends[cut] = source, target
        try:
            await self.require(source.name)
            await self._loop.wait(arrival, *([cut] if stop is None else [cut, stop]))
        finally:
            del self._ends[cut]
        await self.require(source.name, target.name)

    async def forget(self, memory: Memory, layers: Sequence[int], *, used: bool) -> None:
        pass

    async def require(self, *names: str) -> None:
        """Raises InstanceLost, once that is known, where one of `names` has died."""
        for name in names:
            known = self._lost.get(name)
            if known is not None:
                await self._loop.wait(known)
                raise InstanceLost(name, "killed")

    async def stall_links(
        self, devices: Sequence[Location], others: Sequence[Location], for_s: float
    ) -> bool:
        return await self.network.stall(devices, others, for_s)

    def is_lost(self, name: str) -> bool:
        return name in self._lost

    def kill(self, name: str) -> None:
        if name not in self._lost:
            self._lost[name] = Event(self._loop)
            for cut, ends in self._ends.items():
                if name in names(ends):
                    cut.set()
            self.interrupt[name]()
            self._loop.spawn(self._tell(name), name=f"{name} is dead")

    async def _tell(self, name: str) -> None:
        await self._loop.sleep(self._notice_s)
        self._lost[name].set()
        self.on_lost(name, "killed")
