"""`python -m harness.fidelity`: serves held-out schedules for real and in simulation, and says by
how much the simulator was off, by load.

The engine is profiled first (`harness.calibrate measure`, which writes conf/hardware/local.yaml, or
local_vllm.yaml for --engine vllm): the simulator is judged by what it knows of this machine today.
Loads are shares of the knee, the rate at which the engine completes requests that all arrive at
once; it is measured before them.
All of it is done in several passes, since a machine's speed drifts: errors are medians over them,
and how far the real runs of a point are apart stands beside.
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
from harness.errors import RunError, UsageError
from harness.fidelity.parity import compare, headline, over_passes, verdicts
from harness.fidelity.points import HELD_OUT, Point, capacity_per_s, pair
from harness.fidelity.report import markdown
from harness.files import write_text
from harness.manifest import git_revision, machine

PUBLISHED = Path("results/published/fidelity")
LOADS = (0.3, 0.6, 0.9, 1.0, 1.3)
MAX_LOAD = 100.0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m harness.fidelity", description=__doc__)
    made.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    made.add_argument("--workloads", nargs="+", choices=tuple(HELD_OUT), default=list(HELD_OUT))
    made.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    made.add_argument("--num-requests", type=int, default=700, help="per point; P99 needs 662")
    made.add_argument("--passes", type=int, default=3)
    made.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="profile the engine here before each pass",
    )
    made.add_argument(
        "--keep", action="store_true", help="simulate anew, beside the real runs that --runs holds"
    )
    made.add_argument("--runs", type=Path, default=Path("results/runs/fidelity"))
    made.add_argument(
        "--out", type=Path, help=f"default: {PUBLISHED}, vllm/ in it for vllm, --runs for less"
        " than every workload, load and request"
    )  # fmt: skip
    return made


def report_folder(arguments: argparse.Namespace) -> Path:
    """engine=torch's whole report is the one that simulated figures quote; vLLM's lies beside it,
    and one of fewer points where the runs are."""
    asked: Path | None = arguments.out
    if asked is not None:
        return asked
    whole = parser().parse_args([])
    names = ("workloads", "loads", "num_requests", "calibrate", "keep")
    if any(getattr(arguments, name) != getattr(whole, name) for name in names):
        folder: Path = arguments.runs
    else:
        folder = PUBLISHED
    if arguments.engine == "torch" and folder == PUBLISHED:
        return folder
    return folder / str(arguments.engine)


def check(arguments: argparse.Namespace) -> None:
    for name in ("passes", "num_requests"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)} is below 1")
    for load in arguments.loads:
        if not 0 < load <= MAX_LOAD:
            raise UsageError(f"--loads {load:g} is not a load above 0 and up to {MAX_LOAD:g}")


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every point's rows, each with its workload and load, and what the runs ran on."""
    rows: list[dict[str, Any]] = []
    knees: dict[str, float] = {}
    invalid: list[str] = []
    engine, keep = arguments.engine, arguments.keep
    for number in range(1, arguments.passes + 1):
        if arguments.calibrate and calibrate(["measure", "--engine", engine]):
            raise RunError("calibration failed")
        for workload in arguments.workloads:
            folder = arguments.runs / engine / workload
            if workload not in knees:
                knees[workload] = capacity_per_s(workload, folder / "knee", engine, 200, keep)
            for load in arguments.loads:
                point = Point(workload, load * knees[workload], arguments.num_requests)
                run_dir = folder / f"load-{load:g}" / f"pass-{number}"
                real, simulated = pair(point, run_dir, engine, keep)
                name = f"{workload} at {load:g} of {knees[workload]:.1f} requests/s, pass {number}"
                invalid += [f"{name}: {why}" for why in real.summary["verdict"]["reasons"]]
                about = {"workload": workload, "load": load}
                rows += [about | row for row in compare(real.summary, simulated.summary)]
                console.print(f"{name}: {real.summary['verdict']['status']}")
    merged = over_passes(rows)
    targets = verdicts(merged)
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
        "num_passes": arguments.passes,
        "calibrated": arguments.calibrate,
        "real_runs_kept": arguments.keep,
        "invalid": invalid,
        "targets": targets,
        "headline": headline(
            targets, arguments.engine, f"{hardware['device']} ({hardware['name']})"
        ),
        "rows": merged,
        "passes": rows,
    }


def main() -> int:
    arguments, console = parser().parse_args(), Console()
    try:
        check(arguments)
        found = measure(arguments, console)
    except (UsageError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    out = report_folder(arguments)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "parity.json", json.dumps(found, indent=1) + "\n")
    write_text(out / "parity.md", markdown(found))
    console.print(f"{found['headline']}\n{out / 'parity.md'}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
