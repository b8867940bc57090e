"""How long runs took on this machine and how much disk they took: what is told beforehand.

results/runs/times.json has, of each experiment that was made here, the wall seconds and the bytes
of one run (means) and how many runs each tier made; of each figure the seconds of drawing it.
Before the first time on a machine, the seconds are those that FIGURE.json tells of the machine that
the committed table was made on, with DRAWING_S for drawing, and a run has RUN_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.experiments.batch import of_first_seeds, wanted
from harness.experiments.compose import ROOT, sweep
from harness.experiments.figure_progress import run_s, told_run_s
from harness.experiments.figures import described, published
from harness.experiments.points import Only, load_points
from harness.files import make_folder, read_json, write_json
from harness.records.run_folder import RUN_BYTES

TIMES = ROOT / "results/runs/times.json"
STARTING_S = 6.0  # processes, once
DRAWING_S = 3.0  # of a figure, while runs of others are made: before the first time a rough mean
Times = dict[str, dict[str, Any]]  # {"experiments": {name: …}, "figures": {name: seconds}}


@dataclass(frozen=True, slots=True)
class Expected:
    num_runs: int = 0
    num_live: int = 0
    seconds: float = 0.0
    num_bytes: float = 0.0
    num_first: int = 0  # experiments that were never made here

    def told(self, num_figures: int, jobs: int, free_bytes: int) -> str:
        by = "by the last times on this machine"
        if self.num_first:
            by = f"{self.num_first} experiments by the times of the committed tables' machine "
            by += f"and an estimate of {RUN_BYTES / 1e6:g} MB a run"
        return (
            f"{num_figures} figures of {self.num_runs:,} runs ({self.num_live} live): "
            f"about {max(1, ceil(self.seconds / 60))} minutes on {jobs} cores and "
            f"{self.num_bytes / 1e9:.2g} GB of {free_bytes / 1e9:.0f} GB free; {by}. "
            "Complete runs are not repeated."
        )


def last_times(path: Path = TIMES) -> Times:
    empty: Times = {"experiments": {}, "figures": {}}
    return empty | read_json(path) if path.is_file() else empty


def expected(names: Sequence[str], tier: str, jobs: int, times: Times) -> Expected:
    """What the figures' experiments take, each counted once."""
    experiments: dict[str, int] = {}  # by name: the seeds that the committed table has of it
    only: dict[str, list[Only]] = {}
    searched: dict[str, float] = {}  # by name: runs that the ends of its curves took
    paths = {name: published(name) / f"{name}.json" for name in names}
    for name, path in paths.items():
        nothing: dict[str, Any] = {"seeds": [0], "num_runs": 0}
        about = read_json(path) if path.is_file() else nothing
        for each in described(name).experiments:
            experiments[each] = max(experiments.get(each, 1), len(about["seeds"]))
            only.setdefault(each, []).append(described(name).runs(tier))
        for each, num_more in _searched(described(name), about["num_runs"]).items():
            searched[each] = max(searched.get(each, 0.0), num_more)
    committed_s = told_run_s(paths.values())
    num_runs = num_live = num_first = 0
    drawing_s = sum(times["figures"].get(name, DRAWING_S) for name in names)
    num_bytes, seconds = 0.0, 0.0
    for name, num_seeds in experiments.items():
        engine, runs = sweep(name)
        runs = of_first_seeds(wanted(runs, only[name]), 1 if tier == "quick" else None)
        if not runs:  # a coarser grid has none of them
            continue
        here = times["experiments"].get(name)
        more = searched.get(name, 0.0) / (num_seeds if tier == "quick" else 1)
        by_seed = len(runs) + ceil(more)
        # the last time's count has a search's runs, and may be that of another figure
        count = max(by_seed, here["num_runs"].get(tier, 0)) if here else by_seed
        one_s = here["run_s"] if here else committed_s.get(name, 0.0)
        num_runs += count
        num_live += count if engine != "sim" else 0
        seconds += count * one_s / (jobs if engine == "sim" else 1)
        num_first += here is None
        num_bytes += count * (here["run_bytes"] if here else RUN_BYTES)
    seconds = STARTING_S + max(seconds + drawing_s / jobs, drawing_s)  # one process draws
    return Expected(num_runs, num_live, seconds, num_bytes, num_first)


def _searched(figure: Any, num_runs: int) -> dict[str, float]:
    """How many runs of a figure are no points of its sweep, by experiment; each search has as
    many."""
    swept = sum(len(wanted(sweep(each)[1], [figure.only])) for each in figure.experiments)
    found: Mapping[str, Any] = figure.searches
    return {name: max(0, num_runs - swept) / len(found) for name in found}


def note(name: str, tier: str, draw_s: float, made_in: Path, path: Path = TIMES) -> None:
    """Keeps what figure `name`, made into `made_in`, took; earlier times of it are replaced."""
    times = last_times(path)
    for experiment in described(name).experiments:
        points = [p for p in load_points(experiment, made_in) if p.path is not None]
        if points:
            before: Mapping[str, Any] = times["experiments"].get(experiment, {"num_runs": {}})
            times["experiments"][experiment] = {
                "run_s": run_s(points)[experiment],
                "run_bytes": round(fmean(_size_bytes(point.folder) for point in points)),
                "num_runs": before["num_runs"] | {tier: len(points)},
            }
    times["figures"][name] = round(draw_s, 3)
    make_folder(path.parent)
    write_json(path, times)


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
