"""One server process: its log, its death noticed, its end for certain.

Every server runs under `supervisor.py`, tied to this process by a pipe. Speaks HTTP to it only to
ask whether it is up. Knows nothing of what it serves.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from harness.device.processes import below

SUPERVISOR = Path(__file__).with_name("supervisor.py")
GRACE_S = 10.0  # between asking a server to end and killing it; vLLM takes 1 to 2
TAIL_BYTES = 16384

MAX_BYTES = 8 << 20  # of an answer to one question
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy

LOG_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?(\w+ [\d-]+ [\d:]+ \[\S+:\d+\] ?)?\s*")
ROOT_CAUSE = re.compile(r"^[\w.]*(Error|Exception): .+")


def fetch(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> bytes:
    """The answer to a GET or, with a `body`, a POST. Raises OSError or HTTPException."""
    question = urllib.request.Request(url, body, dict(headers or {}))
    with DIRECT.open(question, timeout=timeout_s) as answer:
        return bytes(answer.read(MAX_BYTES))


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]
    finally:
        for held in sockets:
            held.close()


@dataclass(kw_only=True, slots=True)
class Plan:
    """A server to start: `command` makes its command line for a port."""

    name: str
    command: Callable[[int], list[str]]
    env: Mapping[str, str]
    log_path: Path


class Server:
    """Started by the constructor; `stop` ends it and everything it started."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.plan, self.name, self.log_path = plan, plan.name, plan.log_path
        self.url = f"http://127.0.0.1:{port}"
        self.started_s = time.monotonic()
        self.ready_s: float | None = None  # seconds that it took to come up
        self._stopping = False
        with plan.log_path.open("wb") as log:
            self._supervisor = subprocess.Popen(
                [sys.executable, str(SUPERVISOR), str(GRACE_S), *plan.command(port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **plan.env},
                # Ctrl-C is for the harness alone; it ends the servers in order. But no session
                # of its own: Linux schedules sessions as groups (sched_autogroup), and a group
                # that waits by sched_yield, as vLLM's does, starves the others for seconds.
                process_group=0,
            )

    def pids(self) -> list[int]:
        """Of the server's processes; their supervisor ends with them."""
        return below(self._supervisor.pid)

    @property
    def running(self) -> bool:
        return self._supervisor.poll() is None

    def is_up(self) -> bool:
        try:
            fetch(f"{self.url}/health", timeout_s=2)
        except (OSError, HTTPException):
            return False
        return True

    def watch(self, on_death: Callable[[], None]) -> None:
        """Has another thread call `on_death` when the server ends before `stop`."""

        def wait() -> None:
            self._supervisor.wait()
            if not self._stopping:
                on_death()

        threading.Thread(target=wait, name=f"watch {self.name}", daemon=True).start()

    def ask_to_stop(self) -> None:
        """Returns at once, so that several servers can end side by side; `stop` waits."""
        self._stopping = True
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()

    def stop(self) -> None:
        """Returns when the server and all its processes are gone."""
        self.ask_to_stop()
        try:
            self._supervisor.wait(4 * GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._supervisor.pid, signal.SIGKILL)
            self._supervisor.wait()

    def obituary(self) -> str:
        """How the server ended and what its log says: the likely cause, and the last lines."""
        status = self._supervisor.wait()
        killed = f"killed by {signal.Signals(status - 128).name}" if status > 128 else ""
        how = killed or f"exit code {status}"
        log = self.log_path.read_text(errors="replace").splitlines()
        lines = [LOG_PREFIX.sub("", line) for line in log if " WARNING " not in line]
        cause = next((line for line in lines if ROOT_CAUSE.match(line)), None)
        parts = [f"{self.name} ended ({how}); its log is {self.log_path}"]
        if cause:
            parts.append(f"first error: {cause}")
        return "\n".join([*parts, "last lines:", *(f"  {line}" for line in lines[-15:])])

    def last_line(self) -> str:
        """The newest line of the log that says something, without its prefix."""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail = log.read().decode(errors="replace").splitlines()
        messages = (LOG_PREFIX.sub("", line) for line in reversed(tail))
        return next((message for message in messages if re.search(r"\w{3}", message)), "")
