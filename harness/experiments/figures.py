"""`python -m harness figures FIGURE …`: runs what a figure lacks, then draws it.

    python -m harness figures aegaeon_fig11
    python -m harness figures 'kunserve_*'

Leaves PNG, PDF and CSV files in results/published/PAPER, and FIGURE.json with the engine, hardware,
seeds and version of the code behind them. A complete run is not repeated. Simulated runs share the
cores. Runs on a real engine come one after the other, with nothing beside them.

key=value after the figures changes their runs on a real engine, for example to use a GPU:

    python -m harness figures aegaeon_fig07 aegaeon_fig15 --out DIR \\
        experiment/aegaeon/machine@_global_=gpu hardware=h200_shared

--simulated key=value changes simulated runs, and leaves out figures with runs on a real engine. It
shows whether conclusions depend on the key (`make sensitivity-PAPER` does so for engine.profile).
--seeds N makes the runs of the first N seeds of each sweep alone. --launcher NAME makes simulated
runs in --jobs tasks of one of Hydra's launchers, whose keys are hydra.launcher.KEY=VALUE.

A figure is a PaperFigure (`plots.figure`) in a module of plots/PAPER: `table(points)` makes
FIGURE.csv from runs, `plot(rows)` draws that table, `experiments` are names of conf/experiment.
`searches` names keys for which ends of curves are searched (`experiments.capacity_search`), `only`
which of the experiments' runs it has.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import filter as matching
from functools import partial
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.configuration.command_line import ends_in_order, parser
from harness.errors import RunError, UsageError
from harness.experiments import lineage
from harness.experiments.batch import Making, processes, run_all
from harness.experiments.capacity_search import Search
from harness.experiments.compose import ROOT, conf, sweep
from harness.experiments.figure_progress import RunsProgress, run_s, told_run_s
from harness.experiments.launched import add_launcher, launcher_words
from harness.experiments.points import RUNS, Only, Point, among, load_points, save_points
from harness.files import make_folder, write_json, write_text
from harness.records.manifest import git_revision
from harness.records.sources import code_hash
from harness.running import interrupts
from harness.running.prepare import announce


def figures() -> list[str]:
    plots = import_module("plots.figure")
    return sorted(name for paper in plots.PAPERS for name in plots.of_paper(paper))


def described(figure: str) -> Any:
    """The `plots.figure.PaperFigure` of a figure."""
    return import_module("plots.figure").of_paper(figure.partition("_")[0])[figure]


def published(figure: str) -> Path:
    """The folder of a figure's paper."""
    return ROOT / "results" / "published" / figure.split("_")[0]


def only_simulated(figure: str) -> bool:
    """Whether it has runs, and none of them on a real engine."""
    return bool(described(figure).experiments) and not has_live_runs(figure)


def has_live_runs(figure: str) -> bool:
    return any(sweep(name)[0] != "sim" for name in described(figure).experiments)


def draw_all(
    names: Sequence[str], jobs: int, out: Path | None, *, draw_only: bool = False
) -> Iterator[list[Path] | RunError]:
    """The files made of each figure, in `out` or in results/published/PAPER, or why it cannot be
    drawn."""
    git = git_revision()  # before any is written there
    draw_one = partial(drawn, git=git, out=out, draw_only=draw_only)
    if len(names) == 1:  # it is drawn sooner than a process starts
        yield draw_one(names[0])
        return
    with processes(jobs) as pool:
        for future in [pool.submit(draw_one, name) for name in names]:
            yield future.result()


def drawn(
    figure: str, *, git: Mapping[str, Any] | None, out: Path | None = None, draw_only: bool = False,
    tier: str = "full",
) -> list[Path] | RunError:  # fmt: skip
    """RunError where a run is INVALID: its numbers are not what they are said to be."""
    folder = out or published(figure)
    picture = import_module("plots.figure").draw
    try:
        table = [] if draw_only else tabled(figure, folder, git, out or RUNS, tier)
        return [*table, *picture(figure, folder)]
    except RunError as error:
        return error


def tabled(
    figure: str, folder: Path, git: Mapping[str, Any] | None, runs: Path, tier: str
) -> list[Path]:
    """FIGURE.csv and FIGURE.json in `folder`, made of the runs that the figure has in `tier`."""
    made = [p for name in described(figure).experiments for p in load_points(name, runs)]
    points = [p for p in made if among(p.overrides, described(figure).runs(tier))]
    refuse_invalid(figure, points)
    folder.mkdir(parents=True, exist_ok=True)
    for half in folder.glob(f".{figure}.*.partial.*"):  # of a drawing that was killed
        half.unlink()
    conf()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    csv, path = folder / f"{figure}.csv", folder / f"{figure}.json"
    rows = described(figure).table(points)
    write_text(csv, rows.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    sets = lineage.add(csv, lineage.origins(points))
    about = {
        "drawn_utc": now, "git": git, "experiments": list(described(figure).experiments),
        "table_sha256": sha256(csv.read_bytes()).hexdigest(), **provenance(points),
        "sets": sets,
    }  # fmt: skip
    write_json(path, about, indent=2)
    return [csv, path]


def refuse_invalid(figure: str, points: Sequence[Point]) -> None:
    invalid = [
        f"{point.path} is INVALID: {'; '.join(verdict['reasons'])}"
        for point in points
        if point.path is not None and (verdict := point.verdict())["status"] != "VALID"
    ]
    if invalid:
        more = f" (and {len(invalid) - 1} more)" if len(invalid) > 1 else ""
        raise RunError(f"{figure} is not drawn: {invalid[0]}{more}; --again repeats its runs")


def provenance(points: Sequence[Point]) -> dict[str, Any]:
    """Tells where a figure's numbers came from, each fact once."""
    manifests = [point.manifest() for point in points if point.path is not None]
    revisions = [json.dumps(m["git"], sort_keys=True) for m in manifests]
    return {
        "runs": {run.config_hash: run.told() for run in lineage.origins(points)},
        "runs_git": [json.loads(revision) for revision in sorted(set(revisions))],
        "runs_sources": sorted({code_hash(m.get("sources", {})) for m in manifests}),
        "origin": import_module("plots.caption").origins(manifests),
        "num_runs": len(manifests),
        "num_invalid": sum(point.again.startswith("it was INVALID") for point in points),
        "run_s": run_s(points),
        "engines": sorted({m["engine_name"] for m in manifests}),
        "hardware": sorted({m["hardware"]["name"] for m in manifests}),
        "seeds": sorted({m["seeds"]["seed"] for m in manifests}),
        "synthetic": sorted({kind for m in manifests for kind in m["dataset"]["synthetic"]}),
        "refused": sorted({point.refused for point in points if point.refused}),
    }


def make_runs(
    names: Sequence[str], making: Making, out: Path | None, tier: str = "full"
) -> Generator[tuple[str, Exception | None]]:
    """Makes the runs that the figures `names` lack in a tier of `reproduce`, those that take
    longest first, and tells of each experiment. Yields each figure when its runs are there, while
    others are made, or when one of them has failed, with why."""
    left, searches = [*names], dict[str, Search]()
    needed: dict[str, list[Only]] = {}
    for figure in map(described, names):
        searches |= figure.searches
        for name in figure.experiments:
            needed.setdefault(name, []).append(figure.runs(tier))
    took_s = told_run_s(published(figure) / f"{figure}.json" for figure in names)
    longest = sorted(needed, key=lambda name: took_s.get(name, 0.0), reverse=True)
    ended: dict[str, Exception | None] = {}
    started_s = time.monotonic()
    with (
        RunsProgress(took_s) as progress,
        # whatever ends this ends its processes
        closing(run_all(longest, searches, replace(making, only=needed), progress)) as runs,
    ):
        for name, points in runs:
            if isinstance(points, Exception):
                ended[name] = points
            else:
                save_points(name, points, out or RUNS)
                empty = not points and tier == "quick"  # a coarser grid may have none of them
                seconds = time.monotonic() - started_s
                ended[name] = None if empty else _told(name, points, seconds, progress.tell)
            for figure in [each for each in left if ended.keys() >= {*described(each).experiments}]:
                left.remove(figure)
                errors = (ended[each] for each in described(figure).experiments)
                yield figure, next(filter(None, errors), None)
    yield from ((figure, None) for figure in left)  # of no runs


def _told(
    name: str, points: Sequence[Point], seconds: float, announce: Callable[[str], None]
) -> RunError | None:
    """Tells of an experiment's runs; RunError: there is none."""
    refused = [point.refused for point in points if point.path is None]
    more = f", {len(refused)} of them refused, the first: {refused[0]}" if refused else ""
    announce(f"{seconds:5.0f} s  {name}: {len(points)} runs{more}")
    if again := [point.again for point in points if point.again]:
        announce(f"         {len(again)} of them run again; {again[0]}")
    none = len(refused) == len(points)
    return RunError(f"{name} has no run that was not refused") if none else None


def _asked(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The figures that the patterns among `words` name, and the overrides among them."""
    known, live = figures(), [word for word in words if "=" in word]
    names: dict[str, None] = {}
    for pattern in (word for word in words if "=" not in word):
        found = matching(known, pattern)
        if not found:
            raise UsageError(f"no figure is called {pattern}; there are {', '.join(known)}")
        names |= dict.fromkeys(found)
    return list(names), live


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("figures", __doc__)
    what = "a figure, a pattern such as 'aqua_*', or key=value"
    about.add_argument("figures", nargs="+", metavar="FIGURE", help=what)
    about.add_argument("--out", type=Path, metavar="DIR", help="default: results/published/PAPER")
    overrides = "change simulated runs; may be given several times"
    about.add_argument(
        "--simulated", action="append", default=[], metavar="key=value", help=overrides
    )
    seeds = "only the runs of the first N seeds"
    about.add_argument("--seeds", type=int, metavar="N", help=seeds)
    add_launcher(about, "simulated runs")
    jobs = "runs at a time (%(default)s)"
    about.add_argument("--jobs", type=int, default=os.cpu_count(), help=jobs)
    about.add_argument("--again", action="store_true", help="repeat complete runs")
    about.add_argument("--draw-only", action="store_true", help="draw the tables that there are")
    chosen = about.parse_intermixed_args(arguments)
    if chosen.jobs < 1:
        raise UsageError(f"--jobs {chosen.jobs} must be at least 1")
    out = None if chosen.out is None else chosen.out.absolute()
    os.chdir(ROOT)
    interrupts.listen()
    launcher = launcher_words(chosen.launcher, chosen.figures)
    names, live = _asked([word for word in chosen.figures if word not in launcher])
    simulated = chosen.simulated
    if chosen.seeds is not None and chosen.seeds < 1:
        raise UsageError(f"--seeds {chosen.seeds} must be at least 1")
    if (live or simulated or chosen.seeds) and out is None:
        word = [*live, *simulated, "--seeds"][0]
        raise UsageError(f"{word}: a figure with overrides of its own needs --out DIR")
    if simulated:
        names = [name for name in names if only_simulated(name)]
    folder = out or RUNS
    made = not folder.exists()
    make_folder(folder)
    refused = 0
    try:
        if not chosen.draw_only:
            making = Making(
                chosen.jobs, live, simulated, chosen.again, chosen.seeds, launcher
            )  # fmt: skip
            with closing(make_runs(names, making, out)) as runs:
                for _, error in runs:
                    if error is not None:
                        raise error
        began_s = time.monotonic()
        for made_of in draw_all(names, chosen.jobs, out, draw_only=chosen.draw_only):
            if isinstance(made_of, RunError):
                refused += 1
                print(f"error: {made_of}", file=sys.stderr)
            else:
                for path in made_of:
                    announce(str(path.relative_to(out or ROOT)))
        announce(f"{time.monotonic() - began_s:.0f} s of drawing")
    finally:
        if made:
            with suppress(OSError):  # it holds files
                (out or RUNS).rmdir()
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
