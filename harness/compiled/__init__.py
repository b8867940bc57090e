"""The simulator's modules as machine code, where it was made of the sources that are here now.

`python -m harness.compiled`, which `make setup` runs, has mypyc compile them into `build/compiled`
of this checkout. Its modules call each other's C functions, so they are one: if one source has
changed since, all of them are Python until the next build. HARNESS_PURE=1: Python in any case.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).resolve().parents[2]
FOLDER = PROJECT / "build" / "compiled"
INDEX = "index.json"  # {"folder", "soabi", "sources": {path: sha256}, "modules": {name: file}}

_why_python = "not imported by way of `harness`"


class Finder(importlib.abc.MetaPathFinder):
    """Finds `modules`, {name: its binary}, ahead of their sources."""

    def __init__(self, modules: Mapping[str, Path]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._modules.get(name)
        return None if file is None else importlib.util.spec_from_file_location(name, file)


def install() -> None:
    """Once per process, before any other module of this project is imported."""
    global _why_python
    try:
        index = json.loads((FOLDER / INDEX).read_bytes())
    except (OSError, ValueError):
        _why_python = "not built"
        return
    _why_python = why_python(index)
    if not _why_python:
        folder = FOLDER / index["folder"]
        modules = {name: folder / file for name, file in index["modules"].items()}
        sys.meta_path.insert(0, Finder(modules))


def why_python(index: Mapping[str, Mapping[str, str]]) -> str:
    """Why what was built cannot be used here and now; empty: it can."""
    if os.environ.get("HARNESS_PURE") == "1":
        return "HARNESS_PURE=1"
    if index["soabi"] != sysconfig.get_config_var("SOABI"):
        return "built for another Python"
    changed = [path for path, content in index["sources"].items() if sha256(path) != content]
    return f"changed since the build: {', '.join(changed)}" if changed else ""


def sha256(path: str) -> str:
    """Of a file of this project; empty: there is none."""
    try:
        return hashlib.sha256((PROJECT / path).read_bytes()).hexdigest()
    except OSError:
        return ""


def state() -> str:
    """For a manifest: "compiled", or "Python" and why."""
    return f"Python: {_why_python}" if _why_python else "compiled"
