"""Whether what a command will write can be written: found out before minutes of measuring."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.errors import UsageError


def writable_file(path: Path, option: str) -> None:
    """UsageError where no file can be written at `path`, which `option` gave."""
    try:
        if path.is_dir():
            raise UsageError(f"{option} {path} is a folder: give the name of a file")
        _try(path.parent)
    except (OSError, ValueError) as error:
        _refuse(path, option, error)


def writable_folder(path: Path, option: str) -> None:
    """UsageError where no file can be written in `path`, which is made with its parents."""
    try:
        _try(next(each for each in (path, *path.absolute().parents) if each.exists()))
    except (OSError, ValueError) as error:
        _refuse(path, option, error)


def _try(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def _refuse(path: Path, option: str, error: Exception) -> None:
    if isinstance(error, UsageError):
        raise error
    why = error.strerror if isinstance(error, OSError) else error
    raise UsageError(f"{option} {path} cannot be written: {why}") from error
