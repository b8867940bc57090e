"""Writing files so that a reader sees the old one, the new one, or none: never a half."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import yaml

from harness.errors import RunError, UsageError, first_line

# In C where PyYAML has them: a run's configuration takes 0.1 s to read in Python.
YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
YamlDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

PARTIAL = ".*.partial*"  # what a killed process leaves of a file that it was writing


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`; renames it to `path` if the block succeeds,
    deletes it if not. The temporary name ends like `path`, for writers that go by the suffix."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)  # what was to be written is told
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """RunError with `path` and the operating system's words where the block cannot write it."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def make_folder(folder: Path) -> None:
    """UsageError where it cannot be made, or nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises UsageError where it holds none, as after a full disk."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged: it holds no JSON object")
    return found


def write_text(path: Path, text: str) -> None:
    with replaced(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any, indent: int = 1) -> None:
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False) + "\n")
