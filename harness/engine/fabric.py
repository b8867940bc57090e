"""The bytes of elastic instances: workers send and read them at the links' pace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NoReturn

from harness.clock import Event, WallLoop
from harness.configuration.checks import require
from harness.cost.hardware import Hardware
from harness.device.location import Location, dram
from harness.device.topology import Topology
from harness.elastic.fabric import Memory, Sending, Span
from harness.engine.agent import answer_of
from harness.engine.bookings import table_bytes
from harness.engine.commands import Commands, ignore
from harness.engine.launcher import Launcher
from harness.engine.paced_links import LinkPath
from harness.engine.transport import Header
from harness.errors import InstanceLost, RunError

StallLinks = Callable[[int, str, Sequence[int], float], float]
NOTICE_S = 10.0


class TorchFabric:
    """Copies and loads between workers, and files, which are memories that are no worker's (DRAM,
    SSD). `stall`: `Launcher.stall_links`, which may wait for another host."""

    places_matter = True

    def __init__(
        self, loop: WallLoop, links: LinkTable, stall: StallLinks, chunk_bytes: int
    ) -> None:
        self._loop, self.links, self._stall = loop, links, stall
        self.paced = links.paced
        self._chunk_bytes = chunk_bytes
        self.commands: dict[str, Commands] = {}  # by instance
        self._nodes: dict[str, int] = {}  # of instances
        self.lost: set[str] = set()
        self._lost_nodes: set[int] = set()
        self.batch_numbers = count()
        self.on_death: list[Callable[[str], None]] = []  # batches in flight look here
        self.on_lost: Callable[[str, str], None]
        self.on_host_lost: Callable[[int], None]

    def join(self, memory: Memory, commands: Commands) -> None:
        name = memory.name
        self.commands[name], self._nodes[name] = commands, memory.node
        commands.worker.on_failure = lambda error: self._died(name, error)

    async def copy(
        self, source: Memory, target: Memory, num_bytes: int,
        spans: Callable[[], Sequence[Span]], sending: Sending,
    ) -> bool:  # fmt: skip
        """Streams: copies of one priority between two memories go one after the other."""
        header = self._header(source, target, sending)
        from_worker, to_worker = source.name in self.commands, target.name in self.commands
        if from_worker and source.name == target.name:
            return await self._ask(source.name, header | {"op": "relocate"}, spans, sending)
        if from_worker and to_worker:
            mover, header = source.name, header | {"op": "push", "to": target.name}
        elif from_worker:
            mover, header = source.name, header | {"op": "save", "file": target.name}
        elif to_worker:
            mover, header = target.name, header | {"op": "pull", "file": source.name}
        else:
            # A worker that lives makes a host's own copy, of that host where there is one.
            living = [name for name in self.commands if name not in self.lost]
            mover = min(living, key=lambda name: self._nodes[name] != target.node)
            header |= {"op": "between", "file": source.name, "to_file": target.name}
        done = await self._ask(mover, header, spans, sending)
        if not done and (sending.stop is None or not sending.stop.is_set):
            await self._notice(source, target)
        self._require(target.name)
        return done

    async def load(
        self, source: Memory, target: Memory, layers: Mapping[int, Span],
        arrival: Callable[[int], Event] | None, on_layer: Callable[[int, float], None],
        stop: Event | None,
    ) -> bool:  # fmt: skip
        """One command: workers forward what comes to them without asking."""
        self._require(target.name)
        if stop is not None and stop.is_set:
            return False
        header = self._header(source, target, Sending("weights"))
        header["layers"] = list(layers.items())
        stops = () if stop is None else (stop,)
        to, done, complete = self.commands[target.name], Event(self._loop), False
        sender = self.commands[target.name if arrival is None else source.name].worker

        def on_message(message: Header) -> None:
            nonlocal complete
            if "layer" in message:
                begin_s = message["begin_s"] - sender.clock.offset_s - self._loop.start_monotonic_s
                on_layer(message["layer"], begin_s)
            if message["last"]:
                complete = message["complete"]
                done.set()

        if arrival is None:
            header |= {"op": "read_layers", "file": source.name}
            to.send(header, on_message, *stops)
            await self._loop.wait(done)
            if not (complete or target.name in self.lost or any(each.is_set for each in stops)):
                await self._notice(source)
        else:
            self._require(source.name)
            number = to.expect(on_message)
            header |= {"op": "send_layers", "to": target.name, "load": number}
            waits = not all(arrival(layer).is_set for layer in layers)

            def send() -> int:
                return self.commands[source.name].send(header, ignore, *stops, patient=waits)

            await self._sent(source.name, target.name, number, done, send)
        self._require(target.name)
        if not complete:
            self._require(source.name)
        return complete

    async def _sent(
        self, source: str, target: str, number: int, done: Event, send: Callable[[], int]
    ) -> None:
        """Sends, and waits until the target has given its last answer; where the source has died,
        the load is ended in its place."""

        def on_death(name: str) -> None:
            if name == source:
                header = {"op": "end_load", "stream": "adopt", "seq": number}
                self.commands[target].worker.send(header)

        self.on_death.append(on_death)
        try:
            seq = send()
            await self._loop.wait(done)
        finally:
            self.on_death.remove(on_death)
        if target in self.lost:
            self.commands[source].worker.send({"op": "stop", "seq": seq})

    async def forget(self, memory: Memory, layers: Sequence[int], *, used: bool) -> None:
        """A batch that waits in the compute stream for a layer may be waiting for these."""
        stream = "compute" if used else "adopt"
        await self._call(memory.name, {"op": "forget", "layers": list(layers), "stream": stream})

    def abandon(self, name: str, number: int, *, broken: bool) -> None:
        """Tells a worker that a batch is over. `broken`: in its midst."""
        if name not in self.lost:
            command = {"op": "abandon", "batch": number, "broken": broken}
            self.commands[name].worker.send(command)

    def kill(self, name: str) -> None:
        self.commands[name].worker.die()

    async def stall_links(
        self, devices: Sequence[Location], others: Sequence[Location], for_s: float
    ) -> bool:
        """Books them at their node, as a message of that length would. Nobody books beside its
        table, so this is not looked at again. False: the node does not answer."""
        node, ports = devices[0].node, self.links.ports(devices, others)
        stall = partial(self._stall, node, self.links.table(node), ports, for_s)
        left_s = await answer_of(self._loop, stall)
        await self._loop.sleep(max(0.0, left_s or 0.0))
        return left_s is not None

    def path(self, source: Memory, target: Memory) -> LinkPath:
        assert isinstance(source.place, Location)
        assert isinstance(target.place, Location)
        return self.links.path(source.place, target.place)

    def _header(self, source: Memory, target: Memory, sending: Sending) -> Header:
        urgent = sending.priority > 0
        return {
            "stream": f"{source.name} to {target.name} {urgent}", "urgent": urgent,
            "path": self.path(source, target),
            "chunk_bytes": sending.chunk_bytes or self._chunk_bytes,
        }  # fmt: skip

    async def _ask(
        self, name: str, header: Header, spans: Callable[[], Sequence[Span]], sending: Sending
    ) -> bool:
        answer = await self._call(name, header | {"spans": spans()}, sending.stop)
        return bool(answer["complete"])

    async def _call(self, name: str, header: Header, stop: Event | None = None) -> Header:
        self._require(name)
        answer = await self.commands[name].call(header, stop)
        self._require(name)
        return answer

    async def _notice(self, *ends: Memory) -> NoReturn:
        """A worker says that one of `ends`, or its host, has died: the harness is about to know
        it, too, and raises InstanceLost then."""
        until_s = self._loop.now + NOTICE_S
        while self._loop.now <= until_s:
            for end in ends:
                if end.name in self.lost or end.node in self._lost_nodes:
                    raise InstanceLost(end.name)
            await self._loop.sleep(0.005)
        names = " or ".join(end.name for end in ends)
        raise RunError(f"a copy broke off, and neither {names} nor its host has died")

    def _require(self, name: str) -> None:
        if name in self.lost:
            raise InstanceLost(name)

    def _died(self, name: str, error: RunError) -> None:
        self.lost.add(name)
        for other in self.commands.keys() - self.lost:
            self.commands[other].worker.send({"op": "lost", "name": name})
        node = self._nodes[name]
        if self.commands[name].worker.node_lost and node not in self._lost_nodes:
            self._lost_nodes.add(node)
            self.on_host_lost(node)
        self.commands[name].fail()
        for tell in list(self.on_death):
            tell(name)
        self.on_lost(name, str(error))


def check_leaves(hardware: Hardware, *, paced: bool, one_host: bool) -> None:
    """UsageError for links of a leaf switch that hosts share: each would book them for itself."""
    leaf, node = hardware.devices_per_leaf, hardware.devices_per_node
    shared = f"devices_per_leaf={leaf} is above devices_per_node={node}: paced links of a leaf"
    booked = one_host or not paced or leaf is None or leaf <= node
    require(booked, f"hardware.{shared} switch that nodes share need engine.cluster=local")


class LinkTable:
    """The links of a topology by number, as `PacedLinks` knows them. `paced`: as slow as their
    rates; else nothing is added to what copies take. `one_host`: all nodes are it; else each has a
    table of its own links."""

    def __init__(
        self, topology: Topology, places: Sequence[Location], paced: bool, one_host: bool
    ) -> None:
        self._topology, self.paced, self._one_host = topology, paced, one_host
        self._numbers: dict[str, int] = {}
        for source in places:
            for target in places:
                if source != target:
                    for link in topology.path(source, target).links:
                        self._numbers.setdefault(link.name, len(self._numbers))

    def table(self, node: int) -> str:
        """The name of the file in which the node's links are booked."""
        return dram(0 if self._one_host else node).file("links")

    def sizes(self, node: int) -> dict[str, int]:
        """The node's tables, each with room for all links: their bytes."""
        if not self.paced or (self._one_host and node > 0):
            return {}
        return {self.table(node): table_bytes(len(self._numbers))}

    def open(self, launcher: Launcher, num_nodes: int) -> list[str]:
        """Opens the tables of all nodes, by themselves: who books does not wait for what is read of
        a node's memory. Their names."""
        tables = [self.sizes(node) for node in range(num_nodes)]
        launcher.open(tables)
        return [name for sizes in tables for name in sizes]

    def ports(self, devices: Sequence[Location], others: Sequence[Location]) -> list[int]:
        """The own links of `devices`."""
        links = [link for each in devices for link in self._topology.ports(each, others)]
        return [self._numbers[link.name] for link in links]

    def path(self, source: Location, target: Location) -> LinkPath:
        """The path of links from `source` to `target`. UsageError: there is none."""
        if source == target:
            return LinkPath({}, None, 0.0)
        path = self._topology.path(source, target)
        if not self.paced:
            return LinkPath({}, None, 0.0)
        links: dict[str, tuple[int, ...]] = {}
        for place, link in enumerate(path.links, path.num_far - len(path.links)):
            table = self.table(source.node if place < 0 else target.node)
            links[table] = (*links.get(table, ()), self._numbers[link.name])
        return LinkPath(links, min(link.bytes_per_s for link in path.links), path.latency_s)
