"""The coordinator's state on disk: every change as a line of JSON, replayed when it starts.

A line is with the operating system before the answer goes out, so it survives `kill -9`. It is not
forced to the disk: a machine that loses power may lose the last lines, and also loses the memory
that they describe. If a writer died within a line, the line is cut off. The file is locked, for one
process at a time. It grows by some hundred bytes with every change; delete it between deployments.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from errno import ENOSPC
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

from harness.errors import UsageError
from systems.aqua.coordinator.requests import Change, from_json, to_json


class Journal:
    """A file of changes."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError if the file cannot be opened, or if another process has it."""
        try:
            self._file: BinaryIO = path.open("a+b", buffering=0)
        except OSError as error:
            raise UsageError(f"state file {path} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(f"state file {path} is in use by another coordinator") from error
        self._path = path

    def changes(self) -> Iterator[Change]:
        """All changes that were appended, in order. Raises UsageError for a line that no
        coordinator wrote."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                yield from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(
                    f"state file {self._path}: no coordinator wrote line {number}: {error}"
                ) from error

    def append(self, change: Change) -> None:
        """Writes a change. Raises OSError, and writes nothing, if it cannot be written whole."""
        line = json.dumps(to_json(change)).encode() + b"\n"
        end = self._file.seek(0, SEEK_END)
        try:
            if self._file.write(line) < len(line):
                raise OSError(ENOSPC, "no room for a line")
        except OSError:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        self._file.close()
