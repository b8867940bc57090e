"""One process at a time writes into a run's folder: two would mix their files.

The folder's claim (`harness.records.claim`) says whose it is, also to other hosts that see the
folder, and goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from harness.errors import UsageError
from harness.records.claim import Claimed, claimed

LOCK = ".lock"  # the claim; those under which it is taken over begin with this, too


class FolderError(UsageError):
    """A run cannot have the folder: it cannot be made, or holds something else."""


class FolderInUse(FolderError):
    """Another process writes into the folder."""


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """Holds `folder`, which is made where there is none, and removed where it is left empty.

    Where another process holds it: waits for that one to end, or raises FolderInUse with its
    number. Raises FolderError where the folder cannot be made, and RunError where it was lost.
    """
    with ExitStack() as stack:
        try:
            while True:
                folder.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # its holder has just removed the folder
                    stack.callback(_remove_empty, folder)
                    stack.enter_context(claimed(folder / LOCK, wait=wait))
                    break
        except Claimed as error:
            raise FolderInUse(
                f"{folder} is in use by {error}, which runs into it; name another folder "
                "or wait for it to end"
            ) from None
        except OSError as error:
            raise FolderError(f"cannot make the run folder {folder}: {error.strerror}") from error
        yield


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds files
        folder.rmdir()
