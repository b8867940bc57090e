"""A node's part of a run on several: starts workers there, as its children.

Runs in an actor of Ray, whose calls come on several threads. It ends with its raylet, which Ray
does not see to; when it ends, however it comes, the kernel ends its workers.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

from harness.engine import tcp
from harness.engine.launcher import Process, environment, start
from harness.records.manifest import versions

ENGINE = Path(__file__).parent
LOOK_S = 0.5


def here() -> Mapping[str, str]:
    """What must be equal on all nodes of a run: versions, and the engine's source."""
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(ENGINE.glob("*.py"))))
    return versions() | {"the engine's source": source.hexdigest()[:12]}


class NodeAgent:
    """`host`: this node's address in the cluster's network."""

    def __init__(self, host: str, token: bytes) -> None:
        self._host, self._token = host, token
        self._tickets = count()
        self._awaited: dict[int, Future[socket.socket]] = {}
        self._processes: dict[int, Process] = {}
        self._listeners = ThreadPoolExecutor(thread_name_prefix="listener")
        # One thread for all: the kernel ends a worker with the thread that it was started by.
        self._starter = ThreadPoolExecutor(1, "starter")
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def here(self) -> Mapping[str, str]:
        return here()

    def listen(self) -> tuple[int, tcp.Address]:
        """Opens a port for one connection. A number by which `start` finds it, and the address."""
        server, ticket = tcp.listening(self._host), next(self._tickets)
        address: tcp.Address = server.getsockname()

        def wait() -> socket.socket:
            with server:
                return tcp.accept(server, self._token)

        self._awaited[ticket] = self._listeners.submit(wait)
        return ticket, address

    def start(self, ticket: int, module: str, log_path: Path, num_threads: int) -> int:
        """Starts a worker, which inherits the connection of `ticket`: its process number."""
        connected = self._awaited.pop(ticket).result()

        def begin() -> Process:
            number = connected.fileno()
            with connected, log_path.open("ab") as log:
                return start([module, str(number)], [number], log, environment(num_threads))

        process = self._starter.submit(begin).result()
        self._processes[process.pid] = process
        return process.pid

    def kill(self, pid: int) -> None:
        self._processes[pid].kill()

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """The exit status of a worker; None: it has none yet."""
        try:
            return self._processes[pid].wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


def _end_with(raylet: int) -> None:
    """Ends this process once its parent has ended."""
    while os.getppid() == raylet:
        time.sleep(LOOK_S)
    os._exit(1)
