"""One server process: its log, its death noticed, its end for certain.

Every server runs under `supervisor.py`, tied to this process by a pipe. Speaks HTTP to it only to
ask whether it is up. Knows nothing of what it serves.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from harness.clock import Loop
from harness.device.victim import Victim
from harness.engine.launcher import NodeLost
from harness.engine.site import HERE, Expect, Site

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


@dataclass(kw_only=True, slots=True)
class Plan:
    """A server to start: `command` makes its command line for a port."""

    name: str
    command: Callable[[int], list[str]]
    env: Mapping[str, str]
    log_path: Path
    site: Site = HERE


class Server:
    """Started by the constructor; `stop` ends it and everything it started."""

    def __init__(self, plan: Plan, port: int) -> None:
        self.plan, self.name, self.log_path = plan, plan.name, plan.log_path
        self.url = plan.site.url(port)
        self.started_s = time.monotonic()
        self.ready_s: float | None = None  # seconds that it took to come up
        self._stopping = False
        words = [sys.executable, str(SUPERVISOR), str(GRACE_S), *plan.command(port)]
        self._supervisor = plan.site.start(words, plan.env, plan.log_path)

    def victim(self, loop: Loop, expect: Expect) -> Victim:
        """The server's processes, for faults on purpose; their supervisor ends with them."""
        return self.plan.site.victim(self.name, loop, self._supervisor, expect)

    @property
    def running(self) -> bool:
        try:
            return self._supervisor.poll() is None
        except NodeLost:
            return False

    def is_up(self) -> bool:
        try:
            fetch(f"{self.url}/health", timeout_s=2)
        except (OSError, HTTPException):
            return False
        return True

    def watch(self, on_death: Callable[[], None]) -> None:
        """Has another thread call `on_death` when the server ends before `stop`."""

        def wait() -> None:
            with suppress(NodeLost):
                self._supervisor.wait_for_command()
            if not self._stopping:
                on_death()

        threading.Thread(target=wait, name=f"watch {self.name}", daemon=True).start()

    def ask_to_stop(self) -> None:
        """Returns at once, so that several servers can end side by side; `stop` waits."""
        self._stopping = True
        self._supervisor.end()

    def stop(self) -> None:
        """Returns when the server and all its processes are gone."""
        self.ask_to_stop()
        with suppress(NodeLost):
            try:
                self._supervisor.wait(4 * GRACE_S)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()
                self._supervisor.wait()

    def why(self) -> str:
        """That it has ended, or is lost with its node, as far as is known at once."""
        try:
            self._supervisor.poll()
        except NodeLost as lost:
            return f"{self.name} {lost}"
        return f"{self.name} ended; its log is {self.log_path}"

    def obituary(self) -> str:
        """How the server ended and what its log says: the likely cause, and the last lines."""
        try:
            status = self._supervisor.wait()
            killed = f"killed by {signal.Signals(status - 128).name}" if status > 128 else ""
            how = killed or f"exit code {status}"
        except NodeLost as lost:
            how = str(lost)
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
