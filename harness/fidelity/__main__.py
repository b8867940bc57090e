"""`python -m harness fidelity`: measures the error of the simulator against a real engine.

Writes parity.json, parity.md and parity.png. It works in several passes, since the machine's speed
drifts; errors are medians over the passes. Each pass

1. profiles the engine (`harness calibrate measure`, which writes conf/hardware/local*.yaml);
2. runs each workload at each load on the engine, and in simulation. A load is a share of the knee,
   the rate at which the engine completes requests that all arrive at once;
3. simulates each point again at the speed that the real run had (`harness.fidelity.speed`).

Four more commands, of which sessions alone runs an engine; `--help` after each explains it:

    python -m harness fidelity replay   simulates the loads of a table
    python -m harness fidelity gpu      simulates runs of vLLM on GPUs that others published
    python -m harness fidelity sessions one schedule of sessions, served for real and simulated
    python -m harness fidelity elastic  simulates single operations that others measured on GPUs
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.configuration.command_line import ends_in_order
from harness.fidelity import elastic, gpu, replay, sessions
from harness.fidelity.arguments import (
    check,
    knee_folder,
    parity_parser,
    point_folder,
    profile_name,
    report_folder,
)
from harness.fidelity.parity import Row, compare, headline, over_passes, verdicts
from harness.fidelity.parity_runs import (
    LoadPoint,
    Setting,
    calibration,
    capacity_per_s,
    profile,
    serve,
    simulate,
)
from harness.fidelity.report import markdown
from harness.fidelity.speed import time_scale
from harness.files import write_json, write_text
from harness.records.manifest import git_revision, machine
from harness.records.run_folder import FinishedRun


def passes(
    arguments: argparse.Namespace, setting: Setting, knees: dict[str, float], console: Console
) -> Iterator[tuple[str, Row, LoadPoint, Path, FinishedRun]]:
    """Every point of every pass as it is served: its name, what its rows begin with, the folder of
    its runs. Fills `knees`."""
    engine, keep = arguments.engine, arguments.keep
    for number in range(1, arguments.passes + 1):
        if arguments.calibrate and not arguments.keep:
            profile(arguments.engine, arguments.model, arguments.hardware)
        for workload in rotated(arguments.workloads, number - 1):
            point = LoadPoint(workload, inf, arguments.num_requests, setting)
            if workload not in knees:
                folder = knee_folder(arguments, workload)
                knees[workload] = capacity_per_s(point, folder, engine, keep)
            for load in arguments.loads:
                run_dir = point_folder(arguments, workload, load, number)
                at = replace(point, rate_per_s=load * knees[workload])
                name = f"{workload} at {load:g} of {knees[workload]:.1f} requests/s, pass {number}"
                real = serve(at, run_dir / engine, engine, keep)
                times = time_scale(real, setting)
                status = real.summary["verdict"]["status"]
                about = {"workload": workload, "load": load, "pass": number, "time_scale": times}
                yield name, about | {"valid": status == "VALID"}, at, run_dir, real
                speed = "?" if times is None else f"{times:.2f}"
                said = f"{name}: {status}, iterations {speed} of the calibrated times"
                console.print(said, soft_wrap=True)


def rotated(workloads: list[str], by: int) -> list[str]:
    """Each pass begins with another one: what the machine's speed does within passes, all get."""
    begin = by % len(workloads)
    return workloads[begin:] + workloads[:begin]


def measure(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Every point's rows, each with its workload and load, and what the runs ran on."""
    git = git_revision()  # before calibration writes a profile
    knees: dict[str, float] = {}
    scale, ttft_s, tbt_s = arguments.length_scale, arguments.ttft_s, arguments.tbt_s
    setting = Setting(arguments.model, profile_name(arguments), scale, ttft_s, tbt_s)
    rows, at_their_speed, invalid = list[Row](), list[Row](), list[str]()
    known, sources, synthetic = dict[int, Row](), dict[str, None](), dict[str, list[str]]()
    manifest: Mapping[str, Any] = {}  # of the first
    for name, about, point, folder, real in passes(arguments, setting, knees, console):
        manifest = manifest or real.manifest
        number, times = about["pass"], about["time_scale"]
        simulated = simulate(real, point.overrides(), setting, folder / "sim")
        rows += [about | row for row in compare(real.summary, simulated.summary)]
        if times is not None:
            again = simulate(real, point.overrides(), setting, folder / "sim-speed", times)
            at_their_speed += [about | row for row in compare(real.summary, again.summary)]
        invalid += [f"{name}: {why}" for why in real.summary["verdict"]["reasons"]]
        # What calibration knew of the machine, and what the simulation's times are from.
        known[number] = {"pass": number, **asdict(calibration(real, setting))}
        sources |= dict.fromkeys(simulated.manifest["engine"]["step_times"].values())
        if kinds := real.manifest["dataset"]["synthetic"]:
            synthetic[point.workload] = kinds
    hardware = manifest["hardware"]
    where = f"{hardware['device']} ({hardware['name']})"
    targets = verdicts(rows, at_their_speed)
    return {
        "engine": arguments.engine,
        "model": manifest["choices"]["model"],
        "hardware": hardware["name"],
        "device": hardware["device"],
        "basis": ", ".join(sources),
        "machine": machine(),
        "git": git,
        "date_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "knees_per_s": knees,
        "num_requests": arguments.num_requests,
        "setting": asdict(setting),
        "num_passes": arguments.passes,
        "synthetic": synthetic,
        "calibrations": list(known.values()),
        "real_runs_kept": arguments.keep,
        "invalid": invalid,
        "targets": targets,
        "headline": headline(targets, arguments.engine, where),
        "rows": over_passes(rows),
        "passes": rows,
        "passes_at_their_speed": at_their_speed,
    }


def parity(words: Sequence[str], console: Console) -> None:
    arguments = parity_parser(__doc__).parse_args(words)
    check(arguments)
    found = measure(arguments, console)
    out = report_folder(arguments)
    write_json(out / "parity.json", found)
    write_text(out / "parity.md", markdown(found))
    import_module("plots.fidelity").draw(out)
    console.print(f"{found['headline']}\n{out / 'parity.md'}", soft_wrap=True)


# Words that say that no loads are measured.
COMMANDS = {
    "replay": replay.main, "gpu": gpu.main, "sessions": sessions.main, "elastic": elastic.main,
}  # fmt: skip


@ends_in_order
def main() -> int:
    words, console = sys.argv[1:], Console()
    if words[:1] and words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:], console)
    else:
        parity(words, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
