"""How the workers of a run come to be, and are connected: the seam to other hosts.

A worker knows nothing of it: it inherits a socket to the harness, its node's files and, where it is
to have peers, another socket over which it is given one to each of them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from harness.clock import Loop
from harness.device.processes import Processes
from harness.device.victim import Victim
from harness.engine.device_share import gpu_share_bytes
from harness.engine.host import Host, Launch


class Process(Protocol):
    """A worker's, as a subprocess.Popen."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Launcher(Protocol):
    one_host: bool  # whether all nodes are this host, whose clock is then every worker's

    def open(self, of_nodes: Sequence[Mapping[str, int | None]]) -> Mapping[str, int]:
        """Files for workers that start later: each node's, by names of their own. Their bytes in
        memory; None: on the SSD. What another node asks for of files that were opened together is
        done one after the other. Returns the numbers of those that this process has open."""

    def start(self, launch: Launch, node: int) -> tuple[Process, socket.socket]:
        """The worker, on `node`, and the harness's end of its socket."""

    def connect(self, one: str, other: str) -> None:
        """Has two workers with peers be able to talk to one another."""

    def share_bytes(self, device: str, nodes: Sequence[int]) -> int | None:
        """Each worker's equal part of a GPU's memory, of the smallest; None: they run on the CPU.
        `device`: engine.device. `nodes`: each worker's."""

    def victim(
        self, node: int, name: str, loop: Loop, find: Callable[[], Iterable[int]],
        expect: Callable[[], None],
    ) -> Victim:  # fmt: skip
        """Workers of `node` for faults on purpose to strike: those whose numbers `find` gives."""

    def stall_links(self, node: int, table: str, links: Sequence[int], for_s: float) -> float:
        """`Host.stall_links` of `node`. RunError: it does not answer."""


class NodeLost(ConnectionError):
    """A worker is gone with the node it was on."""


class LocalLauncher:
    """Workers are children of this process, and all nodes this host. `stack`: ends with the run."""

    one_host = True

    def __init__(self, stack: ExitStack, run_dir: Path) -> None:
        self._host = Host(stack, run_dir)
        self.connect = self._host.pair

    def open(self, of_nodes: Sequence[Mapping[str, int | None]]) -> Mapping[str, int]:
        for sizes in of_nodes:
            self._host.open(sizes)
        return self._host.files

    def start(self, launch: Launch, node: int) -> tuple[Process, socket.socket]:
        ours, theirs = socket.socketpair()
        return self._host.start(launch, theirs), ours

    def share_bytes(self, device: str, nodes: Sequence[int]) -> int | None:
        return gpu_share_bytes(device, len(nodes))

    def victim(
        self, node: int, name: str, loop: Loop, find: Callable[[], Iterable[int]],
        expect: Callable[[], None],
    ) -> Processes:  # fmt: skip
        return Processes(name, loop, find, expect)

    def stall_links(self, node: int, table: str, links: Sequence[int], for_s: float) -> float:
        return self._host.stall_links(table, links, for_s)
