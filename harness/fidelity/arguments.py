"""What `python -m harness fidelity` is told, whether it can be done, and where its files go."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path

from harness.calibrate import zoo
from harness.configuration.command_line import parser
from harness.errors import UsageError
from harness.fidelity.parity_runs import HELD_OUT, REPORTED
from harness.files import make_folder
from harness.records.run_folder import FinishedRun

PUBLISHED = Path("results/published/fidelity")
LOADS = (0.3, 0.6, 0.9, 1.0, 1.3)
MAX_LOAD = 100.0


def parity_parser(about: str | None = None) -> argparse.ArgumentParser:
    made = parser("fidelity", about)
    add = made.add_argument
    engine = "our engine, or vLLM servers (%(default)s)"
    add("--engine", choices=("torch", "vllm"), default="torch", help=engine)
    names, known = list(REPORTED), tuple(HELD_OUT)
    held_out = f"of {', '.join(known)}; default: {' '.join(names)}"
    add("--workloads", nargs="+", choices=known, default=names, metavar="NAME", help=held_out)
    loads, shares = list(LOADS), f"shares of the knee; default: {' '.join(map(str, LOADS))}"
    add("--loads", nargs="+", type=float, default=loads, metavar="SHARE", help=shares)
    per_point = "requests of each point (%(default)s); P99 needs 662"
    add("--num-requests", type=int, default=700, metavar="N", help=per_point)
    add("--model", default="tiny-llama", metavar="NAME", help="%(default)s")
    gpu = "profile of this machine's GPU, e.g. h100x1; without it, the CPU"
    add("--hardware", metavar="NAME", help=gpu)
    scale = "factor on the traces' lengths (%(default)s)"
    add("--length-scale", type=float, default=0.25, metavar="X", help=scale)
    ttft, tbt = "SLO of TTFT, seconds (%(default)s)", "SLO of TBT, seconds (%(default)s)"
    add("--ttft-s", type=float, default=0.25, metavar="S", help=ttft)
    add("--tbt-s", type=float, default=0.01, metavar="S", help=tbt)
    add("--passes", type=int, default=3, metavar="N", help="%(default)s")
    either, before = argparse.BooleanOptionalAction, "profile the engine before each pass (yes)"
    add("--calibrate", action=either, default=True, help=before)
    keep = (
        "keep the real runs in --runs, and simulate again: for torch with the calibration"
        " of each run, for vllm with the calibration in conf/"
    )
    add("--keep", action="store_true", help=keep)
    runs = Path("results/runs/fidelity")
    add("--runs", type=Path, default=runs, metavar="DIR", help="%(default)s")
    out = (
        f"default: {PUBLISHED} (for vllm {PUBLISHED}/vllm) for a whole report, and --runs for a "
        "part of it"
    )
    add("--out", type=Path, metavar="DIR", help=out)
    return made


def report_folder(arguments: argparse.Namespace) -> Path:
    """engine=torch's whole report is the one that simulated figures quote; vLLM's lies beside it,
    and one of anything else than the defaults where the runs are."""
    asked: Path | None = arguments.out
    if asked is not None:
        return asked
    whole = vars(parity_parser().parse_args([]))
    of_a_part = {name for name, value in vars(arguments).items() if value != whole[name]}
    part = of_a_part - {"engine", "hardware", "runs", "out"}
    folder: Path = arguments.runs if part else PUBLISHED
    if arguments.engine == "torch" and folder == PUBLISHED:
        return folder
    return folder / str(arguments.engine)


def check(arguments: argparse.Namespace) -> None:
    """UsageError for what cannot be measured, before anything is."""
    _check_numbers(arguments)
    if arguments.hardware and arguments.engine == "vllm":
        told = f"--hardware {arguments.hardware}"
        raise UsageError(f"{told} is of --engine torch alone: leave it out")
    zoo.model(zoo.model_name(arguments.model))
    make_folder(report_folder(arguments))
    if arguments.keep:
        for folder in real_folders(arguments):
            FinishedRun.load(folder)


def _check_numbers(arguments: argparse.Namespace) -> None:
    for name in ("passes", "num_requests"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(arguments, name)} is below 1")
    for name in ("length_scale", "ttft_s", "tbt_s"):
        value = getattr(arguments, name)
        if not 0 < value < inf:
            raise UsageError(f"--{name.replace('_', '-')} {value} is not a number above 0")
    for load in arguments.loads:
        if not 0 < load <= MAX_LOAD:
            raise UsageError(f"--loads {load:g} is not a load above 0 and up to {MAX_LOAD:g}")
    for name in ("workloads", "loads"):
        values = getattr(arguments, name)
        if len(set(values)) < len(values):
            raise UsageError(f"--{name} {' '.join(map(str, values))}: one is there twice")


def real_folders(arguments: argparse.Namespace) -> Iterator[Path]:
    """Yields the folders of the runs on the real engine, of every knee and point."""
    for workload in arguments.workloads:
        yield knee_folder(arguments, workload)
        for load, number in product(arguments.loads, range(1, arguments.passes + 1)):
            yield point_folder(arguments, workload, load, number) / arguments.engine


def knee_folder(arguments: argparse.Namespace, workload: str) -> Path:
    runs: Path = arguments.runs
    return runs / str(arguments.engine) / workload / "knee"


def point_folder(arguments: argparse.Namespace, workload: str, load: float, number: int) -> Path:
    folder = knee_folder(arguments, workload).parent
    return folder / f"load-{load:g}" / f"pass-{number}"


def profile_name(arguments: argparse.Namespace) -> str:
    """The hardware profile that calibration writes for what is asked for."""
    if arguments.engine == "vllm":
        return "local_vllm"
    return "local_gpu" if arguments.hardware else "local"
