"""`python -m harness.fidelity`: serves held-out schedules for real and in simulation, and says by
how much the simulator was off, by load.

The engine is profiled first (`harness.calibrate measure`, which writes conf/hardware/local.yaml, or
local_vllm.yaml for --engine vllm): the simulator is judged by what it knows of this machine today.
Loads are shares of the knee, the rate at which the engine completes requests that all arrive at
once; it is measured before them.
Of engine=torch, probes between the points follow the machine's speed, which drifts; points are
simulated at that speed, and once more as calibrated.
All of it is done in several passes, since a machine's speed drifts: errors are medians over them,
and how far the real runs of a point are apart stands beside.
Writes parity.json and parity.md; plots/fidelity.py draws them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.calibrate.__main__ import main as calibrate
from harness.calibrate.measure import slowness as slowness_of
from harness.engine.threads import engine_threads
from harness.errors import RunError, UsageError
from harness.fidelity.arguments import (
    check,
    knee_folder,
    parser,
    point_folder,
    probed,
    profile_name,
    report_folder,
)
from harness.fidelity.drift import Drift, NoDrift
from harness.fidelity.parity import Row, compare, headline, over_passes, verdicts
from harness.fidelity.points import Point, Setting, capacity_per_s, serve, simulate
from harness.fidelity.report import markdown
from harness.files import write_text
from harness.manifest import git_revision, machine
from harness.run_folder import FinishedRun


def profile(arguments: argparse.Namespace) -> None:
    """Calibrates the engine here. Raises RunError where that fails."""
    words = ["--engine", arguments.engine, "--model", arguments.model]
    words += ["--hardware", arguments.hardware] if arguments.hardware else []
    if calibrate(["measure", *words]):
        raise RunError("calibration failed")


def probe(setting: Setting) -> float:
    """What work takes here now over what calibration found."""
    return slowness_of(setting.model, setting.profile, engine_threads())


@dataclass(frozen=True, slots=True)
class Compared:
    """A point in one pass. Its rows, and those as calibrated, say of which workload and load."""

    real: FinishedRun
    rows: list[Row]
    as_calibrated: list[Row]
    invalid: list[str]  # why the real run is not VALID


def passes(
    arguments: argparse.Namespace, setting: Setting, knees: dict[str, float], console: Console
) -> Iterator[Compared]:
    """Every point of every pass, as it is done; fills `knees`."""
    engine, keep = arguments.engine, arguments.keep
    for number in range(1, arguments.passes + 1):
        if arguments.calibrate:
            profile(arguments)
        drift = Drift(partial(probe, setting)) if probed(arguments) else NoDrift(keep)
        for workload in arguments.workloads:
            point = Point(workload, inf, arguments.num_requests, setting)
            if workload not in knees:
                folder = knee_folder(arguments, workload)
                knees[workload] = capacity_per_s(point, folder, engine, keep)
            for load in arguments.loads:
                run_dir = point_folder(arguments, workload, load, number)
                at = replace(point, rate_per_s=load * knees[workload])
                name = f"{workload} at {load:g} of {knees[workload]:.1f} requests/s, pass {number}"
                real, slowness = drift.over(
                    partial(serve, at, run_dir / engine, engine, keep), run_dir
                )
                about = {"workload": workload, "load": load, "pass": number, "slowness": slowness}
                yield compared(name, real, at, run_dir, about)
                status = real.summary["verdict"]["status"]
                said = f"{name}: {status}, {slowness:.2f} of the calibrated times"
                console.print(said, soft_wrap=True)


def compared(name: str, real: FinishedRun, point: Point, run_dir: Path, about: Row) -> Compared:
    simulated = told = simulate(real, point, run_dir / "sim", about["slowness"])
    if about["slowness"] != 1:
        told = simulate(real, point, run_dir / "sim-as-calibrated")
    verdict = real.summary["verdict"]
    about = about | {"valid": verdict["status"] == "VALID"}
    return Compared(
        real,
        [about | row for row in compare(real.summary, simulated.summary)],
        [about | row for row in compare(real.summary, told.summary)],
        [f"{name}: {why}" for why in verdict["reasons"]],
    )


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every point's rows, each with its workload and load, and what the runs ran on."""
    git = git_revision()  # before calibration writes a profile
    knees: dict[str, float] = {}
    scale, ttft_s, tbt_s = arguments.length_scale, arguments.ttft_s, arguments.tbt_s
    setting = Setting(arguments.model, profile_name(arguments), scale, ttft_s, tbt_s)
    points = list(passes(arguments, setting, knees, console))
    rows = [row for point in points for row in point.rows]
    as_calibrated = [row for point in points for row in point.as_calibrated]
    drifted = any(row["slowness"] != 1 for row in rows)
    manifest = points[0].real.manifest
    merged = over_passes(rows)
    targets = verdicts(merged, over_passes(as_calibrated))
    hardware = manifest["hardware"]
    return {
        "engine": arguments.engine,
        "model": manifest["choices"]["model"],
        "hardware": hardware["name"],
        "machine": machine(),
        "git": git,
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "knees_per_s": knees,
        "num_requests": arguments.num_requests,
        "setting": asdict(setting),
        "num_passes": arguments.passes,
        "calibrated": arguments.calibrate,
        "probed": drifted,
        "real_runs_kept": arguments.keep,
        "invalid": [why for point in points for why in point.invalid],
        "targets": targets,
        "headline": headline(
            targets,
            arguments.engine,
            f"{hardware['device']} ({hardware['name']})",
            probed=drifted,
        ),
        "rows": merged,
        "passes": rows,
        "passes_as_calibrated": as_calibrated,
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
    write_text(out / "parity.json", json.dumps(found, indent=1) + "\n")
    write_text(out / "parity.md", markdown(found))
    console.print(f"{found['headline']}\n{out / 'parity.md'}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
