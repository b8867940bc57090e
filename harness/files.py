"""Writing files so that a reader sees the old one, the new one, or none: never a half."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL = ".*.partial*"  # what a killed process leaves of a file that it was writing


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; renames it to `path` if the block succeeds,
    deletes it if not. The temporary name ends like `path`, for writers that go by the suffix."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replaced(path) as temporary:
        temporary.write_text(text)
