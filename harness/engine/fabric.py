"""The bytes of elastic instances on this machine: workers send and read them at the links' pace."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from harness.clock import Event, WallLoop
from harness.device.location import Location
from harness.elastic.fabric import Memory, Span
from harness.engine.commands import Commands
from harness.engine.link_table import LinkTable
from harness.engine.transport import Header
from harness.errors import InstanceLost, RunError

NOTICE_S = 5.0


def ignore(message: Header) -> None:
    """Another worker's answers count."""


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
        header = self._header(source, target, priority, chunk_bytes)
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

    async def load(
        self, source: Memory, target: Memory, layers: Mapping[int, Span], *,
        arrival: Callable[[int], Event] | None, on_layer: Callable[[int, float], None],
        priority: int = 0, chunk_bytes: int | None = None, stop: Event | None = None,
    ) -> bool:  # fmt: skip
        """One command: workers forward what comes to them without asking."""
        self._require(target.name)
        if stop is not None and stop.is_set:
            return False
        header = self._header(source, target, priority, chunk_bytes)
        payload = array("q", [n for k, span in layers.items() for n in (k, *span)]).tobytes()
        stops = () if stop is None else (stop,)
        to, done, complete = self.commands[target.name], Event(self._loop), False

        def on_message(message: Header) -> None:
            nonlocal complete
            if "layer" in message:
                begin_s = message["begin_s"] - self._loop.start_monotonic_s
                on_layer(message["layer"], begin_s)
            if message["last"]:
                complete = message["complete"]
                done.set()

        if arrival is None:
            header |= {"op": "read_layers", "file": self._files[source.name]}
            to.send(header, payload, on_message, *stops)
            await self._loop.wait(done)
        else:
            self._require(source.name)
            self.connect(source.name, target.name)
            number = to.expect(on_message)
            header |= {"op": "send_layers", "to": target.name, "load": number}
            waits = not all(arrival(layer).is_set for layer in layers)
            await self._sent(source.name, target.name, number, done, partial(
                self.commands[source.name].send, header, payload, ignore, *stops, patient=waits
            ))  # fmt: skip
        self._require(target.name)
        if not complete:
            self._require(source.name)
        return complete

    async def _sent(
        self, source: str, target: str, number: int, done: Event, send: Callable[[], int]
    ) -> None:
        """Until the target has answered its last, in the source's place where that has died."""

        def on_death(name: str) -> None:
            if name == source:
                header = {"op": "end_load", "lane": "adopt", "seq": number}
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
        """A batch that waits in the compute lane for a layer may be waiting for these."""
        lane = "compute" if used else "adopt"
        await self._call(memory.name, {"op": "forget", "layers": list(layers), "lane": lane})

    def kill(self, name: str) -> None:
        self.commands[name].worker.die()

    def path(self, source: Memory, target: Memory) -> dict[str, Any]:
        return self._path(source, target)

    def _header(
        self, source: Memory, target: Memory, priority: int, chunk_bytes: int | None
    ) -> dict[str, Any]:
        return {
            "lane": f"{source.name} to {target.name} {priority > 0}",
            "path": self._path(source, target), "urgent": priority > 0,
            "chunk_bytes": chunk_bytes or self._chunk_bytes,
        }  # fmt: skip

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
            connected = frozenset((name, other)) in self._connected
            self.commands[other].worker.send({"op": "lost", "name": name, "connected": connected})
        self.commands[name].fail()
        for tell in list(self.on_death):
            tell(name)
        self.on_lost(name, str(error))
