"""Where a server runs: on this host, or on a node of a cluster that has an agent.

A server listens on its own host's loopback interface alone, wherever that is: it has no key. What
runs on another node is reached through a relay (`harness.engine.relay`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

import psutil

from harness.clock import Loop
from harness.device.processes import Processes, below
from harness.device.victim import Victim
from harness.engine import relay, tcp
from harness.engine.agent import Agent
from harness.engine.agents_launcher import AgentsLauncher, FarProcess
from harness.engine.far_victims import FarProcesses
from harness.engine.launcher import Process
from harness.errors import UsageError

LOOK_S = 0.1  # at the line to an agent that has not answered
SILENT_S = 60.0  # the longest that an agent may not answer, though its host is there


class Supervisor(Process, Protocol):
    """A command that ends, with all that it has started, once it is told to."""

    def poll(self) -> int | None: ...

    def wait_for_command(self) -> None:
        """Returns when the command itself has ended; what it left is ended after that."""

    def end(self) -> None:
        """Returns at once."""


Expect = Callable[[], None]  # is told that a fault is planned


class Site(Protocol):
    def free_ports(self, count: int) -> list[int]: ...

    def start(self, words: Sequence[str], env: Mapping[str, str], log_path: Path) -> Supervisor:
        """A command whose end is its standard input's, with `env` beside the site's own."""

    def url(self, port: int) -> str:
        """Where this host reaches a server on the site's `port`."""

    def victim(self, name: str, loop: Loop, command: Supervisor, expect: Expect) -> Victim:
        """What `command` has started, for faults on purpose to strike."""


class Command(subprocess.Popen[bytes]):
    """A command of this host."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], log_path: Path) -> None:
        with log_path.open("wb") as log:
            super().__init__(
                words,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                # Ctrl-C is for the harness alone; it ends the servers in order. But no session
                # of its own: Linux schedules sessions as groups (sched_autogroup), and a group
                # that waits by sched_yield, as vLLM's does, starves the others for seconds.
                process_group=0,
            )

    def wait_for_command(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it and its supervisor are gone
            children = psutil.Process(self.pid).children()
            if children:  # the others have lost their parents, and came later
                min(children, key=psutil.Process.create_time).wait()

    def end(self) -> None:
        assert self.stdin is not None
        self.stdin.close()

    def kill(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)


class ThisHost:
    free_ports = staticmethod(relay.free_ports)
    start = Command

    @staticmethod
    def url(port: int) -> str:
        return f"http://{relay.LOOPBACK}:{port}"

    @staticmethod
    def victim(name: str, loop: Loop, command: Supervisor, expect: Expect) -> Processes:
        return Processes(name, loop, lambda: below(command.pid), expect)


HERE = ThisHost()


class FarCommand(FarProcess):
    """`line`: a connection to the agent, over which nothing goes and which ends with it."""

    def __init__(self, agent: Agent, node: str, pid: int, line: socket.socket) -> None:
        super().__init__(agent, node, pid)
        self._line = line

    def _is_gone(self, silent_s: float) -> bool:
        """It is asked for while it lives, when slow answers tell nothing."""
        if self._line.fileno() < 0:  # the run has closed it, at its end
            return True
        look = select.poll()  # which knows numbers of files above 1,023
        look.register(self._line, select.POLLIN)
        return bool(look.poll(LOOK_S * 1e3)) or silent_s > SILENT_S

    def wait_for_command(self) -> None:
        """What it left has ended, too: its agent is told no earlier."""
        self.wait()

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        self._agent.tell("end", self.pid)


class Node:
    """A node of `launcher`; its relays end with `stack`."""

    def __init__(self, stack: ExitStack, launcher: AgentsLauncher, node: int) -> None:
        self._stack, self._launcher = stack, launcher
        self._agent, self._name = launcher.agents[node], launcher.named(node)
        try:
            self._line = stack.enter_context(launcher.line(node))
        except tcp.Refused as error:
            raise UsageError(f"{self._name} cannot be reached: {error}") from None

    def free_ports(self, count: int) -> list[int]:
        ports: list[int] = self._agent.ask("free_ports", count)
        return ports

    def start(self, words: Sequence[str], env: Mapping[str, str], log_path: Path) -> FarCommand:
        pid = self._agent.ask("supervise", words, dict(env), log_path)
        return FarCommand(self._agent, self._name, pid, self._line)

    def url(self, port: int) -> str:
        address = self._agent.ask("relay", port)
        return HERE.url(relay.harness_end(self._stack, tuple(address), self._launcher.token))

    def victim(self, name: str, loop: Loop, command: Supervisor, expect: Expect) -> FarProcesses:
        return FarProcesses(name, loop, self._agent, lambda: [command.pid], expect)
