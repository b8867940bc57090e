"""Workers forked from one process that has imported torch, which is over half of a worker's start.

For tests of what workers compute; those of how they start and end have them started as a run does.
A worker becomes a child of the process that asked for it, as if that had started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

import psutil

PR_SET_CHILD_SUBREAPER = 36
MAX_MESSAGE_BYTES = 1 << 20
MAX_FILES = 64
ABOVE = 512  # no file that a worker is given has a number so high


class Forked:
    """As much of a subprocess.Popen as a WorkerProcess uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)
        self._code: int | None = None
        self._waiting = threading.Lock()  # the process is reaped once

    def kill(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        with self._waiting:
            if self._code is None:
                try:
                    self._code = int(self._process.wait(timeout))
                except psutil.TimeoutExpired:
                    raise subprocess.TimeoutExpired("worker", timeout or 0.0) from None
            return self._code


def workers_alive() -> list[psutil.Process]:
    """This process's workers, forked or started as a run starts them; not what forks them."""

    def is_worker(child: psutil.Process) -> bool:
        words = " ".join(child.cmdline())
        forked = "tests.forked_workers" in words and os.getpgid(child.pid) == child.pid
        return forked or "harness.engine" in words

    return [each for each in psutil.Process().children(recursive=True) if is_worker(each)]


class Forker:
    """The process that has imported torch; started when first asked."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def start(
        self, words: Sequence[str], files: Sequence[int], log: BinaryIO,
        environment: Mapping[str, str],
    ) -> Any:  # fmt: skip
        """As harness.engine.host.start."""
        sys.audit("subprocess.Popen", sys.executable, [sys.executable, "-m", *words], None, None)
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(
                    [sys.executable, "-m", "tests.forked_workers", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                )  # fmt: skip
        given = [log.fileno(), *files]
        message = {"words": list(words), "files": list(files), "environment": dict(environment)}
        with _adopting():
            socket.send_fds(self._socket, [json.dumps(message).encode()], given)
            pid = int(self._socket.recv(MAX_MESSAGE_BYTES))
        return Forked(pid)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()  # which ends the process


@contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile the orphans among this process's descendants become its children."""
    prctl = ctypes.CDLL(None).prctl
    assert prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def main() -> None:
    importlib.import_module("harness.engine.worker")
    requests = socket.socket(fileno=int(sys.argv[1]))
    asking = os.getppid()
    while True:
        message, files, _, _ = socket.recv_fds(requests, MAX_MESSAGE_BYTES, MAX_FILES)
        if not message:
            return
        between = os.fork()
        if between == 0:
            if os.fork() == 0:
                _be_worker(json.loads(message), files, requests, asking)
            os._exit(0)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _be_worker(
    message: dict[str, Any], files: Sequence[int], requests: socket.socket, asking: int
) -> NoReturn:
    code = 1
    try:
        while os.getppid() != asking:
            time.sleep(0.0005)
        os.setpgid(0, 0)
        requests.send(str(os.getpid()).encode())
        requests.close()
        above = [fcntl.fcntl(file, fcntl.F_DUPFD, ABOVE) for file in files]
        os.closerange(3, ABOVE)
        for number, file in zip((1, *message["files"]), above, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.dup2(1, 2)
        os.environ.clear()
        os.environ.update(message["environment"])
        sys.argv = message["words"]
        sys.modules[sys.argv[0]].main()
        code = 0
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
