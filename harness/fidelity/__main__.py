"""`python -m harness.fidelity`: serves held-out schedules for real and in simulation, and says by
how much the simulator was off, by load.

engine=torch is profiled first (`harness.calibrate measure`, which writes conf/hardware/local.yaml):
the simulator is judged by what it knows of this machine today. Loads are shares of the knee, the
rate at which the engine completes requests that all arrive at once; it is measured before them.
Writes parity.json and parity.md; plots/fidelity.py draws them.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.calibrate.__main__ import main as calibrate
from harness.errors import RunError
from harness.fidelity.parity import TARGET_LOAD, compare, headline, verdicts
from harness.fidelity.points import HELD_OUT, Point, capacity_per_s, pair, serve
from harness.fidelity.report import markdown
from harness.files import write_text
from harness.manifest import git_revision, machine

LOADS = (0.3, 0.6, 0.9, 1.0, 1.3)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m harness.fidelity", description=__doc__)
    made.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    made.add_argument("--workloads", nargs="+", choices=tuple(HELD_OUT), default=list(HELD_OUT))
    made.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    made.add_argument("--num-requests", type=int, default=700, help="per point; P99 needs 662")
    made.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        help="profile engine=torch here first; default: with --engine torch",
    )
    made.add_argument(
        "--keep", action="store_true", help="simulate anew, beside the real runs that --runs holds"
    )
    made.add_argument("--runs", type=Path, default=Path("results/runs/fidelity"))
    made.add_argument("--out", type=Path, default=Path("results/published/fidelity"))
    return made


def calibrates(arguments: argparse.Namespace) -> bool:
    asked: bool | None = arguments.calibrate
    return arguments.engine == "torch" if asked is None else asked


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every point's rows, each with its workload and load, and what the runs ran on."""
    rows: list[dict[str, Any]] = []
    knees: dict[str, float] = {}
    repeat: list[dict[str, Any]] = []
    invalid: list[str] = []
    for workload in arguments.workloads:
        engine, keep = arguments.engine, arguments.keep
        folder = arguments.runs / engine / workload
        knees[workload] = capacity_per_s(workload, folder / "knee", engine, 200, keep)
        for load in arguments.loads:
            point = Point(workload, load * knees[workload], arguments.num_requests)
            real, simulated = pair(point, folder / f"load-{load:g}", engine, keep)
            name = f"{workload} at {load:g} of {knees[workload]:.1f} requests/s"
            invalid += [f"{name}: {why}" for why in real.summary["verdict"]["reasons"]]
            about = {"workload": workload, "load": load}
            rows += [about | row for row in compare(real.summary, simulated.summary)]
            if load == TARGET_LOAD:  # the real engine against itself: no simulator can do better
                again = serve(point, folder / f"load-{load:g}" / "again", engine, keep)
                repeat += [about | row for row in compare(real.summary, again.summary)]
            console.print(f"{name}: {real.summary['verdict']['status']}")
    targets = verdicts(rows, repeat)
    hardware = real.manifest["hardware"]
    return {
        "engine": arguments.engine,
        "model": real.manifest["choices"]["model"],
        "hardware": hardware["name"],
        "machine": machine(),
        "git": git_revision(),
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "knees_per_s": knees,
        "num_requests": arguments.num_requests,
        "real_runs_kept": arguments.keep,
        "invalid": invalid,
        "targets": targets,
        "headline": headline(
            targets, arguments.engine, f"{hardware['device']} ({hardware['name']})"
        ),
        "rows": rows,
    }


def main() -> int:
    arguments, console = parser().parse_args(), Console()
    if calibrates(arguments) and (failed := calibrate(["measure"])):
        return failed
    try:
        found = measure(arguments, console)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out / "parity.json", json.dumps(found, indent=1) + "\n")
    write_text(arguments.out / "parity.md", markdown(found))
    console.print(f"{found['headline']}\n{arguments.out / 'parity.md'}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
