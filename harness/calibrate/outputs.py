"""Whether what a command will write can be written: found out before minutes of measuring."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UsageError


def writable_file(path: Path, option: str) -> None:
    """UsageError where no file can be written at `path`, which `option` gave."""
    with refusing(path, option), tempfile.TemporaryFile(dir=path.parent):
        folder = path.is_dir()
    if folder:
        raise UsageError(f"{option} {path} is a folder: give the name of a file")


def writable_folder(path: Path, option: str) -> None:
    """UsageError where no file can be written in `path`, which is made with its parents."""
    with refusing(path, option):
        there = next(each for each in (path, *path.absolute().parents) if each.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


@contextmanager
def refusing(path: Path, option: str) -> Iterator[None]:
    """UsageError where the block cannot write to `path`, which `option` gave."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: no name of a file
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{option} {path} cannot be written: {why}") from error
