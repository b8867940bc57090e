"""A point of a figure: one run of an experiment, made unless it is complete."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import RunError, UsageError
from harness.experiments.compose import ROOT, Composed
from harness.files import read_json, write_json
from harness.records.folder_lock import FolderError
from harness.running.prepare import prepare
from harness.running.run import Command, obtain

RUNS = ROOT / "results" / "runs"
Only = Mapping[str, Collection[str]]  # values by key of a sweep


@dataclass(slots=True)
class Point:
    """One run of an experiment: its sweep's overrides, and its folder or why there is none."""

    experiment: str
    overrides: dict[str, str]
    seed: int
    path: Path | None
    refused: str  # what the system says that cannot serve this; empty: it did
    again: str = ""  # why it was run although there was a complete run of it; empty: it was not

    @property
    def folder(self) -> Path:
        """The folder of a run that was not refused."""
        assert self.path is not None, self.refused
        return self.path

    def manifest(self) -> dict[str, Any]:
        return read_json(self.folder / "manifest.json")

    def config_hash(self) -> str:
        """Names the run in a figure's rows where their other columns do not (`lineage`)."""
        found: str = self.manifest()["config_hash"]
        return found

    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = read_json(self.folder / "summary.json")["verdict"]
        return found


def run_point(experiment: str, made: Composed, overrides: Sequence[str], *, again: bool) -> Point:
    """Runs it unless it is complete, or `again`. A system may refuse to serve what it is asked to;
    any other error is raised."""
    with unwarned():
        config = made.configured(overrides)
        if again:
            config.again = True
        parts = prepare(config)
        pairs = by_key(overrides)
        try:
            command = Command(
                ROOT / parts.options.runs_dir, named=False, choices=made.choices,
                overrides=[f"+experiment={experiment}", *overrides],
            )  # fmt: skip
            obtained = obtain(parts, command, wait=True, announce=lambda line: None)
        except FolderError:
            raise  # of no system's making
        except UsageError as error:
            return Point(experiment, pairs, parts.options.seed, None, str(error))
        except RunError as error:
            raise RunError(f"{error} ({experiment} {' '.join(overrides)})") from error
    return Point(experiment, pairs, parts.options.seed, obtained.path, "", obtained.again)


def by_key(overrides: Sequence[str]) -> dict[str, str]:
    return dict(word.lstrip("+").split("=", 1) for word in overrides)


def among(overrides: Mapping[str, str], only: Only) -> bool:
    """Whether a run has one of the values of each key of `only` that its sweep has."""
    return all(overrides[key] in only[key] for key in only.keys() & overrides.keys())


@contextmanager
def unwarned() -> Iterator[None]:
    """Silences warnings of the runs within: a figure says itself what was synthetic."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def save_points(name: str, points: Sequence[Point], folder: Path = RUNS) -> None:
    rows = [asdict(p) | {"path": None if p.path is None else str(p.path)} for p in points]
    write_json(_points_file(name, folder), rows)


def load_points(name: str, folder: Path = RUNS) -> list[Point]:
    path = _points_file(name, folder)
    if not path.is_file():
        raise UsageError(f"{name} has not been run")
    return [
        Point(**row | {"path": None if row["path"] is None else Path(row["path"])})
        for row in json.loads(path.read_text())
    ]


def _points_file(name: str, folder: Path) -> Path:
    return folder / f"{name}.points.json"
