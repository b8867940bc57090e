"""One process at a time writes into a run's folder: two would mix their files.

The lock is the operating system's (flock) and ends with its process, however that ends. The file
that carries it says whose it is and goes with it.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from harness.errors import UsageError

LOCK = ".lock"


class FolderError(UsageError):
    """A run cannot have the folder: it cannot be made, or holds something else."""


class FolderInUse(FolderError):
    """Another process writes into the folder."""


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Holds `folder`, which is made where there is none, and removed where it is left empty.

    Where another process holds it: waits for that one to end, or raises FolderInUse with its
    number. Raises FolderError where the folder cannot be made.
    """
    try:
        lock = _acquired(folder, wait)
    except OSError as error:
        raise FolderError(f"cannot make the run folder {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: who waits for it looks again
        lock.close()
        with suppress(OSError):  # it holds files
            folder.rmdir()


def _acquired(folder: Path, wait: bool) -> FileIO:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileIO(folder / LOCK, "a+")
        except FileNotFoundError:
            continue  # its holder has just removed the folder
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_there(lock, folder):
                if os.fstat(lock.fileno()).st_size:  # of a holder that was killed
                    lock.truncate(0)  # always, it would cost 5 ms: ext4 flushes what was cut to 0
                lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
                return lock
        except BlockingIOError:
            lock.close()
            raise FolderInUse(
                f"{folder} is in use by {_holder(folder)}, which runs into it; name another folder "
                "or wait for it to end"
            ) from None
        except BaseException:
            lock.close()
            raise
        lock.close()  # of a holder that has ended since, with its file


def _is_there(lock: FileIO, folder: Path) -> bool:
    try:
        found = (folder / LOCK).stat()
    except FileNotFoundError:
        return False
    return found.st_ino == os.fstat(lock.fileno()).st_ino


def _holder(folder: Path) -> str:
    with suppress(OSError):
        return (folder / LOCK).read_text() or "another process"
    return "another process"
