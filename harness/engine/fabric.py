"""The bytes of elastic instances on this machine: workers send and read them at the links' pace."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from harness.clock import Event, WallLoop
from harness.device.fabric import Memory, Span
from harness.device.topology import Topology
from harness.engine.commands import Commands
from harness.errors import InstanceLost, RunError
from harness.location import Location

NOTICE_S = 5.0


class LinkTable:
    """The links of a topology by number, as `PacedLinks` knows them. `paced`: as slow as their
    rates; else nothing is added to what copies take."""

    def __init__(self, topology: Topology, places: Sequence[Location], paced: bool) -> None:
        self._topology, self._paced = topology, paced
        self._numbers: dict[str, int] = {}
        for source in places:
            for target in places:
                if source != target:
                    for link in topology.path(source, target).links:
                        self._numbers.setdefault(link.name, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def path(self, source: Location, target: Location) -> dict[str, Any]:
        """As workers are told it. UsageError: there is none."""
        if source == target:
            return {"links": [], "bytes_per_s": None, "latency_s": 0.0}
        path = self._topology.path(source, target)
        rate = min(link.bytes_per_s for link in path.links)
        return {
            "links": [self._numbers[link.name] for link in path.links],
            "bytes_per_s": rate if self._paced else None,
            "latency_s": float(path.latency_s) if self._paced else 0.0,
        }


class TorchFabric:
    """`files`: by the name of a memory that is no worker's (DRAM, SSD)."""

    places_matter = True

    def __init__(
        self, loop: WallLoop, links: LinkTable, files: Mapping[str, int], chunk_bytes: int
    ) -> None:
        self._loop, self.links, self._files = loop, links, files
        self._chunk_bytes = chunk_bytes
        self.commands: dict[str, Commands] = {}  # by instance
        self._invitations: dict[str, socket.socket] = {}
        self._connected: set[frozenset[str]] = set()
        self.lost: set[str] = set()
        self.flight_numbers = count()
        self.on_death: list[Callable[[str], None]] = []  # flights under way look here
        self.on_lost: Callable[[str, str], None]

    def join(self, name: str, commands: Commands, invitations: socket.socket) -> None:
        self.commands[name] = commands
        self._invitations[name] = invitations
        commands.worker.on_failure = lambda error: self._died(name, error)

    def connect(self, *names: str) -> None:
        """Has each two of `names` be able to talk to one another."""
        for first in names:
            for second in names:
                pair = frozenset((first, second))
                if len(pair) == 2 and pair not in self._connected:
                    self._connected.add(pair)
                    ends = socket.socketpair()
                    for end, (to, other) in zip(
                        ends, ((first, second), (second, first)), strict=True
                    ):
                        with end, suppress(BrokenPipeError, ConnectionResetError):  # it has died
                            socket.send_fds(self._invitations[to], [other.encode()], [end.fileno()])

    async def copy(
        self, source: Memory, target: Memory, num_bytes: int,
        spans: Callable[[], Sequence[Span]], *, purpose: str, priority: int = 0,
        chunk_bytes: int | None = None, issue_s: float | None = None, stop: Event | None = None,
    ) -> bool:  # fmt: skip
        """Lanes: copies of one priority between two memories go one after the other."""
        header: dict[str, Any] = {
            "lane": f"{source.name} to {target.name} {priority > 0}",
            "path": self._path(source, target), "urgent": priority > 0,
            "chunk_bytes": chunk_bytes or self._chunk_bytes,
        }  # fmt: skip
        if source.name in self.commands and target.name in self.commands:
            if source.name == target.name:
                return await self._ask(source.name, header | {"op": "relocate"}, spans, stop)
            self.connect(source.name, target.name)
            done = await self._ask(
                source.name, header | {"op": "push", "to": target.name}, spans, stop
            )
            if not done and (stop is None or not stop.is_set):
                await self._notice(target.name)
            self._require(target.name)
            return done
        if source.name in self.commands:
            header |= {"op": "save", "file": self._files[target.name]}
            return await self._ask(source.name, header, spans, stop)
        if target.name in self.commands:
            header |= {"op": "pull", "file": self._files[source.name]}
            return await self._ask(target.name, header, spans, stop)
        return await self._between_files(source, target, spans)

    async def adopt(self, memory: Memory, layers: Sequence[int]) -> None:
        await self._call(memory.name, {"op": "adopt", "layers": list(layers), "lane": "adopt"})

    async def forget(self, memory: Memory, layers: Sequence[int]) -> None:
        await self._call(memory.name, {"op": "forget", "layers": list(layers), "lane": "compute"})

    def kill(self, name: str) -> None:
        self.commands[name].worker.die()

    def path(self, source: Memory, target: Memory) -> dict[str, Any]:
        return self._path(source, target)

    def _path(self, source: Memory, target: Memory) -> dict[str, Any]:
        assert isinstance(source.place, Location)
        assert isinstance(target.place, Location)
        return self.links.path(source.place, target.place)

    async def _ask(
        self, name: str, header: Mapping[str, Any], spans: Callable[[], Sequence[Span]],
        stop: Event | None,
    ) -> bool:  # fmt: skip
        numbers = array("q", [number for span in spans() for number in span])
        answer = await self._call(name, header, numbers.tobytes(), stop)
        complete: bool = answer["complete"]
        return complete

    async def _call(
        self, name: str, header: Mapping[str, Any], payload: bytes = b"", stop: Event | None = None
    ) -> dict[str, Any]:
        self._require(name)
        answer = await self.commands[name].call(header, payload, stop)
        self._require(name)
        return answer

    async def _between_files(
        self, source: Memory, target: Memory, spans: Callable[[], Sequence[Span]]
    ) -> bool:
        """A host's own copy, by a worker that lives: it has the files of all of them."""
        alive = next(name for name in self.commands if name not in self.lost)
        header = {
            "op": "between", "lane": f"{source.name} to {target.name}",
            "path": self._path(source, target), "urgent": False,
            "chunk_bytes": self._chunk_bytes,
            "file": self._files[source.name], "to_file": self._files[target.name],
        }  # fmt: skip
        return await self._ask(alive, header, spans, None)

    async def _notice(self, name: str) -> None:
        """A worker says that `name` has died: the harness is about to know it, too."""
        until_s = self._loop.now + NOTICE_S
        while name not in self.lost:
            if self._loop.now > until_s:
                raise RunError(f"a copy to {name} broke off, which has not died")
            await self._loop.sleep(0.005)

    def _require(self, name: str) -> None:
        if name in self.lost:
            raise InstanceLost(name)

    def _died(self, name: str, error: RunError) -> None:
        self.lost.add(name)
        for other in self.commands.keys() - self.lost:
            self.commands[other].worker.send({"op": "lost", "name": name})
        self.commands[name].fail()
        for tell in list(self.on_death):
            tell(name)
        self.on_lost(name, str(error))
