"""`python -m harness.figures FIGURE …`: runs what a figure lacks, then draws it.

A figure is a module plots/FIGURE.py: `draw(points, folder)`, and EXPERIMENTS, the names in
conf/experiment that it is made of, each one run or a sweep (hydra.sweeper.params). A run that is
complete is not repeated, whichever figure it was made for. Simulated runs share the cores; runs
on a real engine come one after another, with nothing beside them.

Leaves PNG, PDF and CSV files in results/published/PAPER/, and FIGURE.json: from which world,
hardware, seeds and version of the code they came.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import filter as matching
from functools import lru_cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from harness.errors import RunError, UsageError
from harness.files import write_text
from harness.manifest import git_revision
from harness.prepare import announce, prepare
from harness.run import obtain

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
QUIET = ("tracking=none", "progress=false", "figure=null")


@dataclass(slots=True)
class Point:
    """One run of an experiment: its sweep's overrides, and its folder or why there is none."""

    experiment: str
    overrides: dict[str, str]
    seed: int
    path: Path | None
    refused: str  # what the system says that cannot serve this; empty: it did

    def manifest(self) -> dict[str, Any]:
        assert self.path is not None
        found: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        return found


def figures() -> list[str]:
    return sorted(
        path.stem
        for path in (ROOT / "plots").glob("*_*.py")
        if path.stem.split("_")[1].startswith(("fig", "table"))
    )


def module(figure: str) -> Any:
    return import_module(f"plots.{figure}")


def sweep(experiment: str) -> list[list[str]]:
    """The overrides of each of its runs."""
    params = _composed(experiment, ()).hydra.sweeper.params or {}
    words = [f"{key}={value}" for key, value in params.items()]
    batches = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(words), None)
    return [list(overrides) for overrides in batches[0]]


def run_point(experiment: str, overrides: Sequence[str], *, again: bool) -> Point:
    """Runs it unless it is complete, or `again`. A system may refuse to serve what it is asked to;
    any other error is raised."""
    logging.disable(logging.WARNING)  # figures say themselves what was synthetic
    words = [*overrides, *QUIET, *(["again=true"] if again else [])]
    config, choices = configured(experiment, words)
    parts = prepare(config)
    pairs = dict(word.lstrip("+").split("=", 1) for word in overrides)
    try:
        path, _ = obtain(
            parts, output_dir=ROOT / config.runs_dir, named=False, choices=choices,
            overrides=[f"+experiment={experiment}", *overrides],
        )  # fmt: skip
    except UsageError as error:
        return Point(experiment, pairs, parts.options.seed, None, str(error))
    except RunError as error:
        raise RunError(f"{error} ({experiment} {' '.join(overrides)})") from error
    return Point(experiment, pairs, parts.options.seed, path, "")


def is_simulated(experiment: str) -> bool:
    return str(_composed(experiment, ()).hydra.runtime.choices["engine"]) == "sim"


def run_all(names: Sequence[str], jobs: int, *, again: bool) -> Iterator[tuple[str, list[Point]]]:
    """Every run of the experiments `names`, experiment by experiment."""
    simulated = [name for name in names if is_simulated(name)]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = {
            name: [pool.submit(run_point, name, words, again=again) for words in sweep(name)]
            for name in simulated
        }
        try:
            for name, pending in futures.items():
                yield name, [future.result() for future in pending]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for name in names:
        if name not in simulated:
            yield name, [run_point(name, words, again=again) for words in sweep(name)]


def draw(figure: str, points: Sequence[Point]) -> list[Path]:
    """The files made, in results/published/PAPER."""
    folder = ROOT / "results" / "published" / figure.split("_")[0]
    folder.mkdir(parents=True, exist_ok=True)
    conf()
    made: list[Path] = module(figure).draw(points, folder)
    about = folder / f"{figure}.json"
    write_text(about, json.dumps(provenance(points), indent=2, ensure_ascii=False) + "\n")
    return [*made, about]


def provenance(points: Sequence[Point]) -> dict[str, Any]:
    """Where a figure's numbers came from, each fact once."""
    manifests = [point.manifest() for point in points if point.path is not None]
    revisions = [json.dumps(m["git"], sort_keys=True) for m in manifests]
    return {
        "drawn_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "git": git_revision(),
        "runs_git": [json.loads(revision) for revision in sorted(set(revisions))],
        "num_runs": len(manifests),
        "worlds": sorted({m["world"] for m in manifests}),
        "hardware": sorted({m["hardware"]["name"] for m in manifests}),
        "seeds": sorted({m["seeds"]["seed"] for m in manifests}),
        "synthetic": any(m["dataset"]["synthetic"] for m in manifests),
        "refused": sorted({point.refused for point in points if point.refused}),
    }


def save_points(name: str, points: Sequence[Point]) -> None:
    rows = [asdict(p) | {"path": None if p.path is None else str(p.path)} for p in points]
    write_text(_points_file(name), json.dumps(rows, indent=1) + "\n")


def load_points(name: str) -> list[Point]:
    path = _points_file(name)
    if not path.is_file():
        raise UsageError(f"{name} has not been run: leave out --draw-only")
    return [
        Point(**row | {"path": None if row["path"] is None else Path(row["path"])})
        for row in json.loads(path.read_text())
    ]


def _points_file(name: str) -> Path:
    return ROOT / "results" / "runs" / f"{name}.points.json"


def configured(experiment: str, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration and the option of each group, as Hydra gives them for these words.

    Hydra composes each choice of groups once, which takes as long as a small run; values, which
    it would set after composing, are set on a copy.
    """
    groups = [word for word in overrides if (CONF / re.split("[@=]", word)[0]).is_dir()]
    values = [word for word in overrides if word not in groups]
    composed = _composed(experiment, tuple(groups))
    config = composed.copy()
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    for override in OverridesParser.create().parse_overrides(values):
        OmegaConf.update(config, override.key_or_group, override.value())
    return config, choices


@lru_cache(maxsize=64)
def _composed(experiment: str, groups: tuple[str, ...]) -> DictConfig:
    """With Hydra's own node, which says what was chosen."""
    conf()
    words = [f"+experiment={experiment}", *groups]
    config: DictConfig = compose("config", overrides=words, return_hydra_config=True)
    return config


def conf() -> None:
    """Makes conf/ known to Hydra's `compose` in this process."""
    if not GlobalHydra.instance().is_initialized():
        initialize_config_dir(str(CONF), version_base="1.3")


def _tell(name: str, points: Sequence[Point], seconds: float) -> None:
    refused = [point.refused for point in points if point.path is None]
    more = f", {len(refused)} of them refused, the first: {refused[0]}" if refused else ""
    announce(f"{seconds:5.0f} s  {name}: {len(points)} runs{more}")
    if len(refused) == len(points):
        raise RunError(f"{name} has no run that was not refused")


def _parser() -> argparse.ArgumentParser:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m harness.figures", formatter_class=about)
    parser.description = __doc__
    parser.add_argument("figures", nargs="+", metavar="FIGURE", help="a name, or a pattern of it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (%(default)s)")
    parser.add_argument("--again", action="store_true", help="repeat runs that are complete")
    parser.add_argument("--draw-only", action="store_true", help="from the runs of the last time")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    os.chdir(ROOT)
    try:
        names = list(dict.fromkeys(n for p in chosen.figures for n in matching(figures(), p)))
        for pattern in chosen.figures:
            if not matching(figures(), pattern):
                known = ", ".join(figures())
                raise UsageError(f"no figure is called {pattern}; there are {known}")
        parts = {figure: module(figure).EXPERIMENTS for figure in names}
        if not chosen.draw_only:
            needed = dict.fromkeys(name for of_figure in parts.values() for name in of_figure)
            started_s = time.monotonic()
            for name, points in run_all(list(needed), chosen.jobs, again=chosen.again):
                save_points(name, points)
                _tell(name, points, time.monotonic() - started_s)
        for figure, of_figure in parts.items():
            points = [point for name in of_figure for point in load_points(name)]
            for path in draw(figure, points):
                announce(str(path.relative_to(ROOT)))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
