"""The harness's side of a worker process: listens to it, says how it failed.

A thread per worker receives its messages and posts them to the loop. A worker that exits,
falls silent or gets stuck in an iteration ends the run: the thread posts a function that raises
a `RunError`, which names the worker and shows the tail of its log, whoever waits for what.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from harness.clock import WallLoop
from harness.engine.clock_offset import NUM_EXCHANGES, ClockOffset
from harness.engine.launcher import NodeLost, Process
from harness.engine.transport import HEARTBEAT_S, Connection, Header
from harness.errors import RunError

POLL_S = 0.5
EXIT_GRACE_S = 5.0
LOG_TAIL_LINES = 15


class WorkerProcess:
    """A process that has been started, with its end of `sock`; its output is in `log_path`.

    `hang_timeout_s`: silence (no heartbeat) after which a worker counts as hung.
    `step_timeout_s`: heartbeats without an answer to a command before it counts as stuck.
    `stamps`: tokens have the time at which they come here, by the clock of the client, which is not
    the worker's; else that at which the worker had them (`time_s`)."""

    def __init__(
        self, name: str, process: Process, sock: socket.socket, log_path: Path,
        hang_timeout_s: float, step_timeout_s: float, *, stamps: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.clock = ClockOffset()
        self._log_path, self._stamps = log_path, stamps
        self._hang_timeout_s, self._step_timeout_s = hang_timeout_s, step_timeout_s
        self._pending = 0  # commands without an answer yet; written by the loop's thread
        self._num_answered = 0  # also for it: of a stage between two others it is the only sign
        self._closing = self._came_alive = False
        self.node_lost = False  # it is gone with its node
        self._thread: threading.Thread | None = None
        self._process, self._connection = process, Connection(sock)
        self.on_failure: Callable[[RunError], None] = abort

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        return [self.pid]

    def handshake(self, timeout_s: float) -> Header:
        """The worker's answer to `setup`, which was sent before: its model is in memory.
        RunError where it fails, falls silent or takes longer than `timeout_s`. Measures the clock
        offset."""
        ready = self._reply("ready", time.monotonic() + timeout_s)
        for _ in range(NUM_EXCHANGES):
            self._ping()
            self._pong(self._reply("pong", time.monotonic() + timeout_s))
        return ready

    def listen(self, loop: WallLoop, on_message: Callable[[Header], None]) -> None:
        """Starts listening: from here on, messages arrive as `on_message(header)` on the loop's
        thread."""
        self._thread = threading.Thread(
            target=self._listen, args=(loop, on_message), name=f"{self.name}-reader", daemon=True
        )
        self._thread.start()

    def _ping(self) -> None:
        self.send({"op": "ping", "sent_s": time.monotonic()})

    def _pong(self, header: Header) -> None:
        """It says which ping it answers: the next one may have been sent meanwhile."""
        self.clock.add(header["sent_s"], header["time_s"], time.monotonic())

    def send(self, header: Header) -> None:
        # Where it has died, whoever receives from it sees the end of file and says how.
        with suppress(BrokenPipeError):
            self._connection.send(header)

    def expect_answer(self) -> None:
        """A command is out: from now on a worker without progress is stuck."""
        self._pending += 1

    def answered(self) -> None:
        self._pending -= 1
        self._num_answered += 1

    def die(self) -> None:
        """Fault injection: the process is gone as by SIGKILL, and found so."""
        self._process.kill()

    def kill(self) -> None:
        """Ends the process; whoever waits for its `handshake` is told. `close` comes after."""
        self._closing = True
        self._process.kill()

    def close(self) -> None:
        """Ends the process and gives back everything of it."""
        self.kill()
        with suppress(NodeLost):
            self._process.wait()
        if self._thread is not None:
            self._thread.join()
        self._connection.close()

    def _reply(self, op: str, deadline_s: float) -> Header:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            # Its heartbeat begins when its libraries are loaded.
            patience_s = min(left_s, self._hang_timeout_s) if self._came_alive else left_s
            if not self._connection.poll(patience_s):
                if patience_s < left_s:
                    raise self.failure(f"hangs: no sign of life for {patience_s:g} s")
                raise self.failure("did not become ready in time")
            try:
                header, _ = self._connection.receive()
            except EOFError:
                raise self.failure(self._exit_reason()) from None
            self._came_alive = True
            if header["op"] == "error":
                raise self.failure(f"failed: {header['message']}")
            if header["op"] == op:
                return header

    def _listen(self, loop: WallLoop, on_message: Callable[[Header], None]) -> None:
        num_answered = 0
        silent_s = idle_s = 0.0  # counted in polls and beats, so our own pauses do not count
        while not self._closing:
            if not self._connection.poll(POLL_S):
                silent_s += POLL_S
                if silent_s >= self._hang_timeout_s:
                    self._fail(loop, f"hangs: no sign of life for {silent_s:g} s")
                    return
                continue
            silent_s = 0.0
            try:
                header, _ = self._connection.receive()
                came_s = time.monotonic()
            except EOFError:
                if not self._closing:
                    self._fail(loop, self._exit_reason())
                return
            if header["op"] == "error":
                self._fail(loop, f"failed: {header['message']}")
                return
            if header["op"] == "pong":
                self._pong(header)
                continue
            if header["op"] != "alive":
                idle_s = 0.0
                if self._stamps and "time_s" in header:
                    header["time_s"] = came_s
                loop.post(on_message, header)
                continue
            self._ping()
            stands = self._pending and self._num_answered == num_answered
            idle_s = idle_s + HEARTBEAT_S if stands else 0.0
            num_answered = self._num_answered
            if idle_s >= self._step_timeout_s:
                self._fail(loop, f"is stuck: no progress for {idle_s:g} s")
                return

    def _fail(self, loop: WallLoop, reason: str) -> None:
        error = self.failure(reason)
        self._process.kill()  # also frees a loop that blocks in a send to it
        loop.post(lambda: self.on_failure(error))

    def failure(self, reason: str) -> RunError:
        lines = self._log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n".join(f"  {line}" for line in lines) or "  (empty)"
        return RunError(
            f"worker {self.name} (pid {self.pid}) {reason}\nend of {self._log_path}:\n{tail}"
        )

    def _exit_reason(self) -> str:
        try:
            code = self._process.wait(EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            return "closed its connection but has not exited"
        except NodeLost as lost:
            self.node_lost = True
            return str(lost)
        if code == -signal.SIGKILL:
            return "died: killed by SIGKILL (out of memory?)"
        if code < 0:
            return f"died: killed by {signal.Signals(-code).name}"
        return f"died: exit status {code}"


def abort(error: RunError) -> NoReturn:
    """A worker's death ends the run, unless somebody else is told (`on_failure`)."""
    raise error


def side_by_side(
    handshakes: Sequence[Callable[[], Header]], kills: Sequence[Callable[[], None]]
) -> list[Header]:
    """The answers of all `handshakes`, each awaited in a thread. Raises what the first of them to
    fail raises, whichever it is, as soon as it does; `kills`, called then and where this is
    interrupted, end the others."""
    with ThreadPoolExecutor(len(handshakes), "handshake") as threads:
        waiting = [threads.submit(handshake) for handshake in handshakes]
        try:
            for each in as_completed(waiting):
                each.result()
        except BaseException:
            for kill in kills:
                kill()
            raise
        return [each.result() for each in waiting]
