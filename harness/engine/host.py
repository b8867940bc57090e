"""One host's part of a run: the files of its nodes, the workers that inherit them, and the
invitations by which workers are handed connections to one another.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import harness
from harness.engine.bookings import Bookings
from harness.errors import UsageError

Far = Sequence[tuple[socket.socket, Sequence[str]]]  # connected to another host; its files' names
LO = "lo" if sys.platform == "linux" else "lo0"
LOOPBACK = {"GLOO_SOCKET_IFNAME": LO, "NCCL_SOCKET_IFNAME": LO}  # ranks are of one node
DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192"}


class Launch(NamedTuple):
    """A worker that is to be started: Python running `module`. Its output is added to `log_path`.
    `has_peers`: others are to be connected to it."""

    name: str
    module: str
    log_path: Path
    num_threads: int
    has_peers: bool = False


class Host:
    """`stack`: ends with the run. `directory`: of the files that stand for the SSD; None: where
    this host has temporary files."""

    def __init__(self, stack: ExitStack, directory: Path | None) -> None:
        self.stack, self._directory = stack, directory
        self.files: dict[str, int] = {}  # by name, their numbers in this process
        self.tables: dict[str, Bookings] = {}  # those of them that have been booked in here
        self._invitations: dict[str, socket.socket] = {}
        self._cores = os.sched_getaffinity(0)

    def open(self, sizes: Mapping[str, int | None]) -> None:
        """Files without a name, of so many bytes in memory; None: on the SSD, unlinked. However
        the run ends, nothing of them is left."""
        for name, num_bytes in sizes.items():
            self.files[name] = (
                disk_file(self.stack, self._directory)
                if num_bytes is None
                else memory_file(self.stack, name, num_bytes)
            )

    def start(
        self, launch: Launch, control: socket.socket, far: Far = ()
    ) -> subprocess.Popen[bytes]:
        """The worker inherits `control`, all files and the sockets of `far`."""
        with ExitStack() as given, launch.log_path.open("ab") as log:
            sockets = [given.enter_context(each) for each in (control, *(sock for sock, _ in far))]
            invited = None
            if launch.has_peers:
                ours, theirs = socket.socketpair()
                self._invitations[launch.name] = self.stack.enter_context(ours)
                sockets.append(given.enter_context(theirs))
                invited = theirs.fileno()
            numbers = {
                "parent": os.getpid(), "files": self.files, "invitations": invited,
                "far": {sock.fileno(): names for sock, names in far},
            }  # fmt: skip
            words = [launch.module, str(control.fileno()), json.dumps(numbers)]
            files = [*(each.fileno() for each in sockets), *self.files.values()]
            process = start(words, files, log, environment(launch.num_threads))
            # It has inherited the client's own core alone, where that has one by now.
            os.sched_setaffinity(process.pid, self._cores - os.sched_getaffinity(0) or self._cores)
            return process

    def stall_links(self, table: str, links: Sequence[int], for_s: float) -> float:
        """Has `links`, which are booked in the file `table`, carry nothing for `for_s`, behind what
        has been booked: in how many seconds that ends. A fault on purpose."""
        bookings = self.tables.get(table)
        if bookings is None:
            bookings = self.tables.setdefault(table, Bookings(self.files[table]))
        return bookings.stall(links, for_s)

    def introduce(self, to: str, named: str, end: socket.socket) -> None:
        """Hands a worker its end of a connection to the worker `named`. Where it has died, the
        other one finds its end closed."""
        with end, suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._invitations[to], [named.encode()], [end.fileno()])

    def pair(self, one: str, other: str) -> None:
        """Has two workers of this host be able to talk to one another."""
        for end, to, named in zip(socket.socketpair(), (one, other), (other, one), strict=True):
            self.introduce(to, named, end)


def memory_file(stack: ExitStack, name: str, num_bytes: int) -> int:
    """A file in memory that workers inherit; UsageError where there are none."""
    if sys.platform != "linux":
        raise UsageError("engine=torch shares memory between instances on Linux only (memfd)")
    file = os.memfd_create(name)
    stack.callback(os.close, file)
    os.ftruncate(file, num_bytes)
    return file


def disk_file(stack: ExitStack, directory: Path | None) -> int:
    return stack.enter_context(tempfile.TemporaryFile(dir=directory)).fileno()


def start(
    words: Sequence[str], files: Sequence[int], log: BinaryIO, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Python running the module `words[0]` with the other words; it inherits `files`."""
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        pass_fds=files,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        # Ctrl-C reaches the harness alone. Not a session of its own: Linux shares the cores
        # out by session (autogroup), and a busy worker would starve the client for seconds.
        process_group=0,
    )


def environment(num_threads: int) -> dict[str, str]:
    """Our environment, with this checkout importable and the thread pools sized.

    OpenMP threads that spin while they wait are a few percent faster on an idle machine and
    10 to 40 times slower on a busy one, where each barrier waits for a preempted spinner. oneDNN
    keeps the code of 1,024 products by default: an iteration has five, of any number of rows.
    """
    root = str(Path(harness.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(num_threads)}
    return DEFAULTS | os.environ | fixed
