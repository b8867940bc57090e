"""The files that stand for a node's DRAM and SSD, by name, as workers read and write them, and the
bookings of its links.

A worker has those of its own host open. For one of another host it asks, over a connection to that
host, whose agent does what it asks for (`serve`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from harness.engine.bookings import Booking, Bookings
from harness.engine.transport import Connection, Header, PeerLost

ANSWER_S = 30.0  # the longest that another host may take for one part of a file


class OpenFile:
    """`number`: of a file that this process has open."""

    def __init__(self, number: int) -> None:
        self.number = number

    def read(self, into: memoryview, at: int) -> None:
        """Fills `into` from byte `at` on. EOFError: it ends before."""
        done = 0
        while done < len(into):
            got = os.preadv(self.number, [into[done:]], at + done)
            if got == 0:
                raise EOFError(f"a file ends {len(into) - done} bytes before a read of it")
            done += got

    def write(self, content: memoryview, at: int) -> None:
        done = 0
        while done < len(content):  # the kernel takes at most 2 GiB at a time
            done += os.pwrite(self.number, content[done:], at + done)


def number_of(file: NodeFile) -> int:
    """The number of a file of this host, by which it is mapped into memory."""
    assert isinstance(file, OpenFile)
    return file.number


class FarFile:
    """An `OpenFile` of another host, or its `Bookings`. PeerLost: that has died."""

    def __init__(self, name: str, host: FarHost) -> None:
        self._name, self._host = name, host

    def read(self, into: memoryview, at: int) -> None:
        asked = {"op": "read", "file": self._name, "at": at, "num_bytes": len(into)}
        _, into[:] = self._host.ask(asked)

    def write(self, content: memoryview, at: int) -> None:
        self._host.ask({"op": "write", "file": self._name, "at": at}, content)

    def book(
        self, links: Sequence[int], busy_s: float, *, urgent: bool, after_s: float | None = None
    ) -> Booking:
        how = {"links": links, "busy_s": busy_s, "urgent": urgent, "after_s": after_s}
        answer, _ = self._host.ask({"op": "book", "file": self._name, "how": how})
        return Booking(answer["over_s"], time.monotonic() + answer["left_s"])


NodeFile = OpenFile | FarFile


class FarHost:
    """`sock`: connected to what `serve`s there. One request at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._name = str(sock.getpeername())
        sock.settimeout(ANSWER_S)
        self._connection, self._lock = Connection(sock), threading.Lock()

    def ask(self, header: Header, content: bytes | memoryview = b"") -> tuple[Header, bytearray]:
        with self._lock:
            try:
                self._connection.send(header, content)
                answer, found = self._connection.receive()
            except (EOFError, OSError):
                self._connection.close()  # an answer that comes late is nobody's
                raise PeerLost(f"host {self._name} is gone") from None
        if "error" in answer:
            raise OSError(answer["error"])
        return answer, found


def serve(sock: socket.socket, files: Mapping[str, int], tables: dict[str, Bookings]) -> None:
    """Reads and writes `files`, by their numbers, for the other end until that closes. `tables`:
    those of them that have been booked in, which all who serve them share."""
    with sock, suppress(EOFError, BrokenPipeError):
        connection = Connection(sock)
        while True:
            header, content = connection.receive()
            found, answer, name = bytearray(header.get("num_bytes", 0)), Header(), header["file"]
            file = OpenFile(files[name])
            try:
                if header["op"] == "read":
                    file.read(memoryview(found), header["at"])
                elif header["op"] == "write":
                    file.write(memoryview(content), header["at"])
                else:
                    table = tables.get(name) or tables.setdefault(name, Bookings(file.number))
                    over_s, at_s = table.book(**header["how"])
                    answer = {"over_s": over_s, "left_s": at_s - time.monotonic()}
            except (EOFError, OSError) as error:
                answer = {"error": str(error)}
            connection.send(answer, memoryview(found))


def files_of(numbers: Mapping[str, int], far: Mapping[str, list[str]]) -> dict[str, NodeFile]:
    """The files that a worker was given: open ones by name, and by the number of a socket to
    another host the names of that host's."""
    files: dict[str, NodeFile] = {name: OpenFile(number) for name, number in numbers.items()}
    for number, names in far.items():
        host = FarHost(socket.socket(fileno=int(number)))
        files |= {name: FarFile(name, host) for name in names}
    return files
