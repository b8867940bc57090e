"""Live runs on one device come one after another, whatever folders they run into: two would slow
each other, and neither would say so.

A lock per device lies in a folder that is local to the host, where flock is reliable. The locks end
with their process, however that ends. A simulated run and one on a remote endpoint hold none.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.engine_api import Engine
from harness.errors import UsageError
from harness.records import gpu_monitor

VARIABLE = "HARNESS_DEVICE_LOCKS"  # a folder instead of FOLDER
FOLDER = "/dev/shm/elastic-serving-harness"  # in memory: no network file system is mounted there


def devices_of(engine: Engine, node: Mapping[str, Any]) -> list[str]:
    """What a run occupies of this host: `cpu`, or every GPU that it is shown; [] without a live
    engine of this host. `node`: of conf/engine, as the run has it."""
    if engine.name == "sim" or not (engine.has_devices and engine.devices_known):
        return []
    return occupied(node)


def occupied(node: Mapping[str, Any]) -> list[str]:
    """The same, of a live engine of this host."""
    if node.get("device") == "cpu" or node.get("cluster") == "ray":  # whose agents lock GPUs
        return ["cpu"]
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    known = [str(i) for i in range(len(gpu_monitor.devices()))]
    gpus = known if shown is None or not known else [word for word in shown.split(",") if word]
    return [f"gpu-{gpu}" for gpu in sorted(gpus)] or ["cpu"]


@contextmanager
def held(devices: Sequence[str], announce: Callable[[str], None]) -> Iterator[None]:
    """Holds `devices`, in their order. Waits for processes that hold one, and tells of it, where
    `announce` may raise."""
    with ExitStack() as stack:
        for device in devices:
            stack.callback(os.close, _locked(device, announce))
        yield


def name_of(device: str) -> str:
    """Of the device's lock, as no other lock has it on any host."""
    lock = _lock_of(device)
    boot = Path("/proc/sys/kernel/random/boot_id")
    host = boot.read_text().strip() if boot.exists() else socket.gethostname()
    try:
        return f"{host} {os.fstat(lock).st_dev} {os.fstat(lock).st_ino}"
    finally:
        os.close(lock)


def _locked(device: str, announce: Callable[[str], None]) -> int:
    lock = _lock_of(device)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 100, 0).decode() or "another process"
            announce(f"waiting for {device}: {holder} has a live run on it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.truncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()}".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _lock_of(device: str) -> int:
    folder = Path(os.environ.get(VARIABLE, FOLDER))
    try:
        return _opened(folder, folder / device.replace("/", "-"))
    except OSError as error:
        why = f"cannot lock {device} in {folder}: {error.strerror}; {VARIABLE} names another folder"
        raise UsageError(why) from error


def _opened(folder: Path, path: Path) -> int:
    """Opens the file, which every user of the host may: it is made once, and never removed."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        made = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(PermissionError):  # another user has made it meanwhile
            os.fchmod(made, 0o666)
        return made
