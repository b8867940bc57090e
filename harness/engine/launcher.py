"""How the workers of a run come to be, and are connected: the seam to other hosts.

A worker knows nothing of it: it inherits a socket to the harness and, where it is to have peers,
another one over which it is given a socket to each of them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import harness

Pair = tuple[socket.socket, socket.socket]
DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192"}


class Process(Protocol):
    """A worker's, as a subprocess.Popen."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Launcher(Protocol):
    def start(
        self, name: str, node: int, module: str, files: Sequence[int], log_path: Path,
        num_threads: int, *, has_peers: bool = False,
    ) -> tuple[Process, socket.socket]:  # fmt: skip
        """Python running `module` on `node`, and the harness's end of its socket. It inherits
        `files`; its output is added to `log_path`."""
        ...


class NodeLost(ConnectionError):
    """A worker is gone with the node it was on."""


class LocalLauncher:
    """Workers are children of this process, and all nodes this host. `pair`: of connected sockets;
    `stack`: ends with the run."""

    def __init__(self, stack: ExitStack, pair: Callable[[], Pair] = socket.socketpair) -> None:
        self._stack, self._pair = stack, pair
        self._invitations: dict[str, socket.socket] = {}

    def start(
        self, name: str, node: int, module: str, files: Sequence[int], log_path: Path,
        num_threads: int, *, has_peers: bool = False,
    ) -> tuple[Process, socket.socket]:  # fmt: skip
        ours, theirs = self._pair()
        with ExitStack() as given, log_path.open("ab") as log:
            sockets = [given.enter_context(theirs)]
            if has_peers:
                self._invitations[name], invited = socket.socketpair()
                self._stack.enter_context(self._invitations[name])
                sockets.append(given.enter_context(invited))
            numbers = [each.fileno() for each in sockets]
            words = [module, *map(str, numbers)]
            return start(words, [*numbers, *files], log, environment(num_threads)), ours

    def connect(self, one: str, other: str) -> None:
        """Has two workers with peers be able to talk to one another. Where one has died, the other
        finds its end closed."""
        for end, to, named in zip(self._pair(), (one, other), (other, one), strict=True):
            with end, suppress(BrokenPipeError, ConnectionResetError):  # it has died
                socket.send_fds(self._invitations[to], [named.encode()], [end.fileno()])


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
    """Ours, with this checkout importable and the thread pools sized.

    OpenMP threads that spin while they wait are a few percent faster on an idle machine and
    10 to 40 times slower on a busy one, where each barrier waits for a preempted spinner. oneDNN
    keeps the code of 1,024 products by default: an iteration has five, of any number of rows.
    """
    root = str(Path(harness.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(num_threads)}
    return DEFAULTS | os.environ | fixed
