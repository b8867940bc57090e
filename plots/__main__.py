"""Draws finished runs and sweeps, and writes their reports. `COMMAND --help` explains each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from harness.errors import RunError, UsageError
from plots import bench_sim, compare, fidelity, report, run, sweep


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness plots", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    folder = "the folder of a run"
    one = commands.add_parser("run", help="draw run.png into each run's folder")
    one.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=folder)
    page = commands.add_parser("report", help="write report.html into each run's folder")
    page.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=folder)
    several = commands.add_parser("compare", help="draw runs side by side and print their metrics")
    several.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=folder)
    beside = "default: compare.png in the folder that holds the first RUN"
    several.add_argument("--out", type=Path, metavar="FILE", help=beside)
    swept = commands.add_parser(
        "sweep", help="draw a metric of a sweep over a key, with 95 %% intervals"
    )
    swept.add_argument(
        "table", type=Path, metavar="CSV", help="the sweep's table, results/runs/sweep-ID.csv"
    )
    swept.add_argument("--x", required=True, metavar="KEY", help="a key of the sweep")
    swept.add_argument(
        "--y", required=True, metavar="METRIC", help="a number of summary.json, e.g. ttft_s.p99"
    )
    swept.add_argument(
        "--by", metavar="KEY", help="another key of the sweep: one line for each value"
    )
    swept.add_argument("--out", type=Path, metavar="FILE", help="default: beside CSV, with .png")
    parity = commands.add_parser("fidelity", help="draw parity.png from parity.json")
    published = Path("results/published/fidelity")
    parity.add_argument("folder", nargs="?", type=Path, default=published, help="%(default)s")
    speed = commands.add_parser("bench_sim", help="draw bench_sim.png from bench_sim.json")
    speed.add_argument("folder", nargs="?", type=Path, default=published.parent, help="%(default)s")
    chosen = parser.parse_args(arguments)
    console = Console()
    try:
        if chosen.command == "run":
            for path in chosen.runs:
                console.print(str(run.draw(path)))
        elif chosen.command == "report":
            for path in chosen.runs:
                console.print(str(report.write(path)), soft_wrap=True)
        elif chosen.command == "sweep":
            drawn = sweep.draw(chosen.table, chosen.x, chosen.y, chosen.by, chosen.out)
            console.print(str(drawn))
        elif chosen.command == "fidelity":
            made = fidelity.draw(chosen.folder / "parity.json", chosen.folder / "parity.png")
            console.print(str(made))
        elif chosen.command == "bench_sim":
            source = chosen.folder / "bench_sim.json"
            console.print(str(bench_sim.draw(source, source.with_suffix(".png"))))
        else:
            console.print(compare.table(chosen.runs))
            out = chosen.out or chosen.runs[0].resolve().parent / "compare.png"
            console.print(str(compare.draw(chosen.runs, out)))
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
