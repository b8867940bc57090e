"""A claim: a file that one process at a time holds, whichever host it runs on.

It is made by O_CREAT|O_EXCL, which network file systems keep atomic; flock is not reliable there.
It ends with its removal. A process that is killed leaves its claim, so a claim says whose it is,
and its holder signs it every BEAT_S by its time of change. A claim is stale

- on its holder's own host: once no process has the holder's number and start;
- on any other host: once it has not been signed for STALE_S, by the clock of the file system.

Who finds a stale claim takes it over under a second claim, which is named after the first one's
token. As tokens never repeat, nobody can remove a claim that another process has taken meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile

import psutil

from harness.errors import RunError

BEAT_S = 10.0
STALE_S = 120.0  # above BEAT_S and the minute for which NFS clients keep a file's attributes
LOOK_S = 0.1  # between two looks at a claim of another process, on this host
LOOK_ELSEWHERE_S = 2.0  # on another host: each look costs a file there


class Claimed(Exception):
    """Another process has the claim: the one that this names."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a claim says of the process that made it."""

    process: int
    host: str
    place: str  # host, its boot and its space of process numbers
    started_s: float  # when the process did
    token: str  # of this claim alone

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    def lives(self) -> bool:
        """Whether the process, one of this host, is still there."""
        try:
            found = psutil.Process(self.process)
            same = abs(found.create_time() - self.started_s) < 1.0  # boot times are rounded
            return bool(same and found.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


@contextmanager
def claimed(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds the claim `path`, a file in a folder that is there.

    Where another process has it: waits for that one to end, or raises Claimed. Raises RunError at
    the end if the claim was lost: this process stood still for STALE_S. Raises OSError where the
    file cannot be made.
    """
    token, descriptor = _taken(path, wait)
    ended = threading.Event()
    signing = threading.Thread(target=_sign, args=(descriptor, ended), daemon=True)
    signing.start()
    try:
        yield
    finally:
        ended.set()
        signing.join()
        os.close(descriptor)  # before it goes: NFS keeps an open file under another name
        kept = _token(path) == token
        if kept:
            path.unlink()
    if not kept:
        raise RunError(
            f"{path} was taken over: this process stood still for {STALE_S:.0f} s, and another one "
            "may have run into the folder"
        )


def _taken(path: Path, wait: bool) -> tuple[str, int]:
    """The token of the claim, now this process's, and the open file."""
    while True:
        own, token = psutil.Process(), uuid.uuid4().hex[:12]
        mine = Holder(own.pid, socket.gethostname(), _place(), own.create_time(), token)
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            try:
                os.write(descriptor, json.dumps(asdict(mine)).encode())
            except BaseException:
                os.close(descriptor)
                path.unlink()
                raise
            return mine.token, descriptor
        here = True
        try:
            holder = _holder(path)
            here = holder is not None and holder.place == _place()
            stale = not holder.lives() if here and holder else _unsigned_s(path) > STALE_S
        except FileNotFoundError:
            continue  # it has just been given up
        if stale and _removed(path):
            continue
        if not wait:
            raise Claimed(str(holder or "another process"))
        threading.Event().wait(LOOK_S if here else LOOK_ELSEWHERE_S)


def _removed(path: Path) -> bool:
    """Removes the stale claim `path`, or says that another process is about to."""
    token = _token(path)
    if token is None:
        return True
    try:
        with claimed(path.with_name(f"{path.name}-{token}"), wait=False):
            if _token(path) == token:
                path.unlink()
    except Claimed:
        return False
    return True


def _sign(descriptor: int, ended: threading.Event) -> None:
    with suppress(OSError):  # it was taken over, as its holder will see
        while not ended.wait(BEAT_S):
            os.utime(descriptor)


def _holder(path: Path) -> Holder | None:
    """None: it is not written yet, and never will be if its holder was killed just then."""
    text = path.read_text()
    return Holder(**json.loads(text)) if text.endswith("}") else None


def _token(path: Path) -> str | None:
    """None: there is no such claim."""
    try:
        holder = _holder(path)
        return str(path.stat().st_ino) if holder is None else holder.token
    except FileNotFoundError:
        return None


def _unsigned_s(path: Path) -> float:
    """Seconds since the claim was signed, by the clock that signed it: the file system's."""
    with path.open() as claim, TemporaryFile(dir=path.parent) as now:
        return os.fstat(now.fileno()).st_mtime - os.fstat(claim.fileno()).st_mtime


@cache
def _place() -> str:
    parts = [socket.gethostname()]
    with suppress(OSError):  # where there is no /proc, a host's name tells it
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
