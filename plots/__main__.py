"""Draws finished runs and sweeps, and writes their reports. `COMMAND --help` explains each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.configuration.command_line import ends_in_order
from harness.errors import UsageError
from plots import (
    bench_engine,
    bench_sim,
    compare,
    fidelity,
    gpu,
    papers,
    report,
    run,
    scaling,
    sweep,
)

PUBLISHED = Path("results/published")
OF_RUNS = {  # what each command says of itself, and how it makes its file of a run
    "run": ("draw run.png into each run's folder", run.draw),
    "report": ("write report.html into each run's folder", report.write),
}
OF_FOLDERS = {  # the same of a folder with published results
    "fidelity": ("draw parity.png from parity.json", fidelity.draw, PUBLISHED / "fidelity"),
    "bench_engine": ("draw bench_engine.png from bench_engine.json", bench_engine.draw, PUBLISHED),
    "bench_sim": ("draw bench_sim.png from bench_sim.json", bench_sim.draw, PUBLISHED),
    "gpu": ("draw gpu.png from the gpu.json of `make gpu`", gpu.draw, Path("results/runs/gpu")),
}


def _parser() -> argparse.ArgumentParser:
    """`made` of a chosen command yields what is to be printed."""
    parser = argparse.ArgumentParser(prog="python -m harness plots", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (what, draw_run) in OF_RUNS.items():
        one = commands.add_parser(name, help=what)
        one.set_defaults(draw=draw_run, made=lambda chosen: map(chosen.draw, chosen.runs))
    several = commands.add_parser("compare", help="draw runs side by side and print their metrics")
    beside = "default: compare.png in the folder that holds the first RUN"
    several.add_argument("--out", type=Path, metavar="FILE", help=beside)
    several.set_defaults(made=_compared)
    scaled = commands.add_parser(
        "scaling", help="tell how elastic runs scaled, and draw scaling.png"
    )
    scaled.set_defaults(made=_scaled)
    for each in commands.choices.values():
        each.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the folder of a run")
    swept = commands.add_parser(
        "sweep", help="draw a metric of a sweep over a key, with 95 %% intervals"
    )
    csv = "the sweep's table, results/runs/sweep-ID.csv"
    swept.add_argument("table", type=Path, metavar="CSV", help=csv)
    swept.add_argument("--x", required=True, metavar="KEY", help="a key of the sweep")
    metric = "a number of summary.json, e.g. ttft_s.p99"
    swept.add_argument("--y", required=True, metavar="METRIC", help=metric)
    by = "another key of the sweep: one line for each value"
    swept.add_argument("--by", metavar="KEY", help=by)
    swept.add_argument("--out", type=Path, metavar="FILE", help="default: beside CSV, with .png")
    swept.set_defaults(made=lambda c: [sweep.draw(c.table, c.x, c.y, c.by, _in_a_folder(c.out))])
    for name, (what, draw, folder) in OF_FOLDERS.items():
        one = commands.add_parser(name, help=what)
        one.add_argument("folder", nargs="?", type=Path, default=folder, help="%(default)s")
        one.set_defaults(draw=draw, made=lambda chosen: [chosen.draw(chosen.folder)])
    of_all = commands.add_parser("papers", help="write the report: every figure and claim")
    both = "default: results/published/report.html, and results/reproduced/report.html"
    of_all.add_argument("--out", type=Path, metavar="FILE", help=both)
    of_all.set_defaults(made=lambda chosen: papers.write(chosen.out))
    return parser


def _compared(chosen: argparse.Namespace) -> Iterator[Table | Path]:
    out = _in_a_folder(chosen.out) or chosen.runs[0].resolve().parent / "compare.png"
    yield compare.table(chosen.runs)
    yield compare.draw(chosen.runs, out)


def _in_a_folder(out: Path | None) -> Path | None:
    """`out`, before anything is drawn. UsageError where its folder is missing."""
    if out is not None and not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    return out


def _scaled(chosen: argparse.Namespace) -> Iterator[Table | Path]:
    yield from scaling.tables(chosen.runs)
    yield from filter(None, map(scaling.draw, chosen.runs))


@ends_in_order
def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    console = Console()
    for made in chosen.made(chosen):
        if isinstance(made, Table):
            console.print(made)
        else:
            console.print(str(made), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
