"""The simulator's modules as machine code, where it was made of the sources that are here now.

`python -m harness.compiled`, which `make setup` runs, has mypyc compile them into `build/compiled`
of this checkout, in groups. The modules of a group call each other's C functions and those of the
groups that it needs: if one source has changed since, its group and those that need it are Python
until the next build. So an edited policy is Python, on kernel and devices that are still compiled.
HARNESS_PURE=1: Python in any case.
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
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
IN_WHEEL = Path(__file__).parent / "built"  # what a wheel carried here
FOLDER = IN_WHEEL if IN_WHEEL.is_dir() else PROJECT / "build" / "compiled"
# {"folder", "soabi", "groups": {name: {"needs": [name, …], "sources": {path: sha256}}}}, each after
# those that it needs
INDEX = "index.json"

_why_python: dict[str, str] = {"": "not imported by way of `harness`"}  # of each group; "": of all


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
    """Has compiled modules found; called once per process, before any other module of this project
    is imported."""
    global _why_python
    try:
        index = json.loads((FOLDER / INDEX).read_bytes())
        _why_python = why_python(index)
    except (OSError, ValueError, KeyError):  # KeyError: built by another version of this
        _why_python = {"": "not built"}
    if "" not in _why_python:
        sys.meta_path.insert(0, Finder(usable(index, _why_python)))


def usable(index: Mapping[str, Any], why: Mapping[str, str]) -> dict[str, Path]:
    """{module: its binary} of the groups that are not in `why`, with the binary that the modules of
    a group share."""
    folder, suffix = FOLDER / index["folder"], sysconfig.get_config_var("EXT_SUFFIX")
    return {
        path.removesuffix(".py").replace("/", "."): folder / f"{path.removesuffix('.py')}{suffix}"
        for name, group in index["groups"].items()
        if name not in why
        for path in (f"{name}__mypyc", *group["sources"])
    }


def why_python(index: Mapping[str, Any]) -> dict[str, str]:
    """Why groups of what was built cannot be used here and now; none: all can. "": all of them."""
    if os.environ.get("HARNESS_PURE") == "1":
        return {"": "HARNESS_PURE=1"}
    if index["soabi"] != sysconfig.get_config_var("SOABI"):
        return {"": "built for another Python"}
    why: dict[str, str] = {}
    for name, group in index["groups"].items():
        changed = [path for path, content in group["sources"].items() if sha256(path) != content]
        lacking = [need for need in group["needs"] if need in why]
        if changed:
            why[name] = f"changed since the build: {', '.join(changed)}"
        elif lacking:
            why[name] = why[lacking[0]]
    return {"": next(iter(why.values()))} if why and len(why) == len(index["groups"]) else why


def sha256(path: str) -> str:
    """The SHA-256 of a file of this project; empty: there is none."""
    try:
        return hashlib.sha256((PROJECT / path).read_bytes()).hexdigest()
    except OSError:
        return ""


def state() -> str:
    """The state that a manifest tells: "compiled", or "Python" and why, of all or of some
    groups."""
    if "" in _why_python:
        return f"Python: {_why_python['']}"
    if not _why_python:
        return "compiled"
    parts = [f"{name} in Python: {why}" for name, why in _why_python.items()]
    return f"compiled; {'; '.join(parts)}"
