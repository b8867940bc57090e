"""Which runs each row of a figure's CSV comes from: the hash of their configuration, the sha256 of
their schedule, and whether they were VALID.

A figure's module makes its rows as it likes. A row belongs to those of the figure's runs that agree
with it wherever it names a trait of runs: experiment, seed, engine, hardware, an option of a group,
or a swept key by its last part. Of two of one name the swept one counts: four runs of one
`system=blitzscale`, swept over what each figure calls a system, are four systems. A row over
several runs, as a mean over seeds is, names them all. A row that no run agrees with was computed
from the configuration or the paper, and names none. Where the rest of a row does not tell, the
module fills `config_hash` itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd

from harness.experiments.points import Point
from harness.files import write_text

COLUMNS = ("config_hash", "schedule_sha256", "verdict")
OTHERS = ("against",)  # columns that name a second run's system
MAX_NAMED = 6  # of a row; of more, a key
DIGITS = 12  # of a schedule's sha256
NO_RUN = {"refused": "refused", "inputs": "no run"}  # by the column that says so


@dataclass(frozen=True, slots=True)
class Origin:
    """One run, and what rows may call it."""

    config_hash: str
    schedule_sha256: str
    verdict: str
    folder: str
    traits: Mapping[str, frozenset[str]] = field(repr=False)
    options: Mapping[str, frozenset[str]] = field(repr=False)  # of groups, swept keys hiding none

    def told(self) -> str:
        """The run's entry in FIGURE.json, by its hash."""
        return f"{self.folder}, schedule {self.schedule_sha256}, {self.verdict}"


def origins(points: Sequence[Point]) -> list[Origin]:
    """The origins of the runs that were not refused, each folder once."""
    found: dict[Path, Origin] = {}
    for point in points:
        if point.path is None:
            continue
        manifest = point.manifest()
        options = {
            key: frozenset({plain(str(option))})
            for key, option in manifest["choices"].items()
            if "/" not in key
        }
        machine = {
            "engine": frozenset({manifest["engine_name"]}),
            "hardware": frozenset({manifest["hardware"]["name"]}),
        }
        traits: dict[str, set[str]] = {}
        for key, value in _told(point):
            traits.setdefault(key, set()).add(plain(value))
        if point.path in found:  # one run of two experiments
            for key, values in found[point.path].traits.items():
                traits.setdefault(key, set()).update(values)
        swept = {key: frozenset(values) for key, values in traits.items()}
        found[point.path] = Origin(
            manifest["config_hash"], manifest["schedule_sha256"], point.verdict()["status"],
            point.path.name, options | swept | machine, options,
        )  # fmt: skip
    return list(found.values())


def _told(point: Point) -> Iterator[tuple[str, str]]:
    yield "experiment", point.experiment
    yield "experiment", re.sub("_(bandwidth|beyond)$", "", point.experiment)  # drawn beside it
    yield "seed", str(point.seed)
    for key, value in point.overrides.items():
        yield re.split(r"[./]", key.partition("@")[0])[-1], str(value)


def plain(value: str) -> str:
    """Numbers as one text: 0.10 and 1e-1 are 0.1."""
    try:
        return f"{float(value):.6g}"
    except ValueError:
        return value


def of_row(row: Mapping[Any, str], runs: Sequence[Origin]) -> list[Origin]:
    """Returns those of `runs` that the row names by their hashes, else those that agree with it;
    none where it names no trait of theirs, or says whose numbers it is made of (`inputs`). An
    option that a swept key hides counts where no run was swept over what the row says."""
    if row.get("inputs"):  # made of no run
        return []
    if hashes := row.get("config_hash"):
        return [run for run in runs if run.config_hash in hashes.split()]
    known = {key for run in runs for key in run.traits}
    named = {key: plain(row[key]) for key in row if key in known and row[key] != ""}
    heeded = {key: value for key, value in named.items() if any(_has(r, key, value) for r in runs)}
    hidden = {
        key: value
        for key, value in named.items()
        if key not in heeded and any(value in run.options.get(key, ()) for run in runs)
    }
    second = {row[key] for key in OTHERS if row.get(key)}
    return [
        run
        for run in runs
        if heeded | hidden
        and all(
            key not in run.traits
            or _has(run, key, value)
            or (key == "system" and second & run.traits[key])
            for key, value in heeded.items()
        )
        and all(value in run.options.get(key, {value}) for key, value in hidden.items())
    ]


def _has(run: Origin, key: str, value: str) -> bool:
    return value in run.traits.get(key, ())


def add(path: Path, runs: Sequence[Origin]) -> dict[str, list[str]]:
    """Adds COLUMNS to the CSV; every other value stays as it was written. Returns the hashes that
    each key of many runs stands for."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    sets: dict[str, list[str]] = {}
    if table.empty or not runs:
        return sets
    traits = {key for run in runs for key in run.traits} | {*OTHERS, "config_hash", *NO_RUN}
    told: dict[tuple[str, ...], tuple[str, ...]] = {}
    cells = []
    for row in table.to_dict("records"):
        key = tuple(row[name] for name in row if name in traits)
        if key not in told:
            told[key] = _cells(row, of_row(row, runs), sets)
        cells.append(told[key])
    table = table.drop(columns=list(COLUMNS), errors="ignore")
    table[list(COLUMNS)] = cells
    write_text(path, table.to_csv(index=False, lineterminator="\n"))
    return sets


def _cells(
    row: Mapping[Any, str], runs: Sequence[Origin], sets: dict[str, list[str]]
) -> tuple[str, ...]:
    if not runs:
        return "", "", next((told for name, told in NO_RUN.items() if row.get(name)), "")
    hashes = list(dict.fromkeys(run.config_hash for run in runs))
    schedules = list(dict.fromkeys(run.schedule_sha256[:DIGITS] for run in runs))
    verdicts = " ".join(sorted({run.verdict for run in runs}))
    if len(hashes) <= MAX_NAMED:
        return " ".join(hashes), " ".join(schedules), verdicts
    key = f"{len(hashes)}-runs-{sha256(' '.join(hashes).encode()).hexdigest()[:DIGITS]}"
    sets[key] = hashes
    return key, key, verdicts
