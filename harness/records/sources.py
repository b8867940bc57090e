"""Which of this project's files a run was made by, and whether they have changed since.

A run is its configuration but for the SLO, which changes nothing that is served, its schedule and
its code. The code is what the parts of its configuration are made of, the modules of the system,
the engine, the workload and the SLO, and all that these and the run itself import, directly or not.
So an edited policy is another run, and what another system, another engine or a figure is made of
does not matter, nor what git says.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.files import write_text

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("harness", "systems", "workloads")
SERVING = "harness.running.serve"  # from a prepared run to its numbers
# What this code found in files, by their content: syntax trees of all of a run's files take as long
# as the run. Beside downloads (`data.cache_dir`).
CACHE = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME', '.')}/.cache"
OWN = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
NAMED = Path(CACHE) / "elastic-serving-harness" / f"named-{OWN}.json"
MOST_NAMED = 3000  # files, beyond which it is begun anew
SHOWN = 3  # changed files that are named in a sentence


@dataclass(frozen=True, slots=True)
class Identity:
    """Two runs are the same if these are: what was served, and by which code. Two summaries are if
    the SLO is, too."""

    served_hash: str  # of the resolved configuration but for the SLO, and of the schedule
    sources: dict[str, str]  # as `sources` gives them
    config_hash: str = ""  # as served_hash, with the SLO: what a row of a table is of

    def __str__(self) -> str:
        return f"{self.served_hash}-{code_hash(self.sources)}"


def sources(config: Mapping[str, Any]) -> dict[str, str]:
    """{path in the project: 12 hex digits of its content} of every file that a run of the resolved
    `config` is made by, in the order of the paths."""
    return _made_by(frozenset(targets(config)))


@cache
def _made_by(parts: frozenset[str]) -> dict[str, str]:
    left, seen, num_read = [SERVING, *parts], set[str](), len(_read())
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += _needed(name)
    if len(_read()) > num_read:
        with suppress(OSError):  # then the next process reads the files anew
            NAMED.parent.mkdir(parents=True, exist_ok=True)
            write_text(NAMED, json.dumps(_read()))
    paths = sorted(path.relative_to(PROJECT).as_posix() for path in map(_file, seen) if path)
    return {path: content(path) for path in paths}


def targets(config: Any) -> Iterator[str]:
    """Every `_target_` in `config`, at any depth."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key == "_target_":
                yield str(value)
            else:
                yield from targets(value)
    elif isinstance(config, list):
        for value in config:
            yield from targets(value)


def changed(before: Mapping[str, str]) -> list[str]:
    """Returns those files among `before`, which `sources` gave, that are other ones now or gone."""
    return [path for path, known in before.items() if content(path) != known]


def code_hash(sources: Mapping[str, str]) -> str:
    """8 hex digits that stand for all of `sources` together."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:8]


def why_again(before: Mapping[str, str] | None) -> str:
    """Why a run made by the files `before`, and not by those of now, is run again."""
    if before is None:
        return "its manifest does not say which sources it was made by"
    files = changed(before)
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return f"changed since: {', '.join(files[:SHOWN])}{more}"


@cache
def content(path: str) -> str:
    """The hash of a file as this process, whose code it is, first saw it. Empty: there is none."""
    file = PROJECT / path
    return hash_of(file.read_bytes()) if file.is_file() else ""


def hash_of(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()[:12]


@cache
def _file(name: str) -> Path | None:
    """The file of the module `name`; None: this project has none of that name."""
    if name.split(".")[0] not in PACKAGES:
        return None
    path = PROJECT.joinpath(*name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


@cache
def _needed(name: str) -> frozenset[str]:
    """The modules that `name`, a module or something in one, needs: those that it names, and the
    packages it is in."""
    parents = {name.rpartition(".")[0]} - {""}
    file = _file(name)
    if file is None:
        return frozenset(parents)
    found, held = _read(), content(file.relative_to(PROJECT).as_posix())
    if held in found:
        return frozenset(parents.union(found[held]))
    source = file.read_bytes()
    named = sorted(_named(source))
    if hash_of(source) == held:  # not edited since this process saw it first
        found[held] = named
    return frozenset(parents.union(named))


def _named(source: bytes) -> set[str]:
    """The modules of this project that `source` imports, and those that it names in a string of
    nothing else, as processes are started."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.add(node.value)
    return {each for each in named if each.split(".")[0] in PACKAGES}


@cache
def _read() -> dict[str, list[str]]:
    """What `_named` found in earlier processes, by the content of the file."""
    with suppress(OSError, ValueError):
        found = json.loads(NAMED.read_bytes())
        if isinstance(found, dict) and len(found) < MOST_NAMED:
            return {held: named for held, named in found.items() if isinstance(named, list)}
    return {}
