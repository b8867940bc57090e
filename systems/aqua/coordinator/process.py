"""The coordinator as a process of this run: started and ended with it, started again if it dies.

It listens on loopback only, and keeps its state in a file (`journal.py`). A coordinator that was
killed comes back with every change that it had confirmed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from harness.errors import RunError, UsageError
from systems.aqua.coordinator.topology import Topology

ROOT = Path(__file__).resolve().parents[3]
HOST = "127.0.0.1"
NEEDED = ("fastapi", "uvicorn")


class CoordinatorProcess:
    """The process. port: 0: any free port. Raises UsageError, with the process's own message, if it
    cannot be started."""

    def __init__(self, topology: Topology, port: int, heartbeat_timeout_s: float) -> None:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing:
            raise UsageError(
                f"no coordinator: {' and '.join(missing)} not installed; pip install '.[aqua]', or "
                "system.coordinator.process=false keeps it within the run"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="aqua-coordinator-"))
        self._topology = self._folder / "topology.json"
        self._topology.write_text(json.dumps(asdict(topology)))
        self._timeout_s = heartbeat_timeout_s
        self._lock = threading.Lock()
        self._stopped = False
        self.port, self.restarts = port, 0
        try:
            self._processes = [self._start()]  # the one that is left
        except UsageError:
            shutil.rmtree(self._folder)
            raise
        self._finalizer = weakref.finalize(self, _end, self._processes, self._folder)

    @property
    def pid(self) -> int:
        return self._processes[0].pid

    def revive(self) -> None:
        """Starts the process again if it has died. Raises RunError if that fails."""
        with self._lock:
            if self._stopped or self._processes[0].poll() is None:
                return
            _close(self._processes[0])
            try:
                self._processes[0] = self._start()
            except UsageError as error:
                raise RunError(
                    f"the coordinator died and cannot be started again: {error}"
                ) from error
            self.restarts += 1

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            self._finalizer()

    def _start(self) -> subprocess.Popen[str]:
        words = [
            "systems.aqua.coordinator", "--topology", str(self._topology), "--state",
            str(self._folder / "state"), "--port", str(self.port), "--heartbeat-timeout-s",
            str(self._timeout_s),
        ]  # fmt: skip
        process, line = child("coordinator", words, self._folder / "errors")
        self.port = int(line.rpartition(":")[2])
        return process


def child(
    name: str, words: Sequence[str], errors: Path, **environment: str
) -> tuple[subprocess.Popen[str], str]:
    """Starts `python -m WORDS`, which ends with this process. Returns it and its first line, which
    says that it is ready. Raises UsageError, with its last words in `errors`, if it ends before."""
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *words, "--with-parent"], cwd=ROOT,
            env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        process.wait()
        _close(process)
        why = errors.read_text().strip().splitlines() or ["it ended without a message"]
        raise UsageError(f"no {name}: {why[-1].removeprefix('error: ')}")
    return process, line


def _close(process: subprocess.Popen[str]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _end(processes: list[subprocess.Popen[str]], folder: Path) -> None:
    for process in processes:
        process.kill()
        process.wait()
        _close(process)
    shutil.rmtree(folder, ignore_errors=True)
