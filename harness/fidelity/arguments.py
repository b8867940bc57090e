"""What `python -m harness fidelity` is told, whether it can be done, and where its files go."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from math import inf
from pathlib import Path

from harness.calibrate import zoo
from harness.errors import UsageError
from harness.fidelity.parity_runs import HELD_OUT, REPORTED
from harness.records.run_folder import FinishedRun

PUBLISHED = Path("results/published/fidelity")
LOADS = (0.3, 0.6, 0.9, 1.0, 1.3)
MAX_LOAD = 100.0


def parser(about: str | None = None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m harness fidelity", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    engine = "our engine, or vLLM servers (%(default)s)"
    made.add_argument("--engine", choices=("torch", "vllm"), default="torch", help=engine)
    names, loads = f"default: {' '.join(REPORTED)}", f"default: {' '.join(map(str, LOADS))}"
    held_out = f"of {', '.join(HELD_OUT)}; {names}"
    made.add_argument(
        "--workloads", nargs="+", choices=tuple(HELD_OUT), default=list(REPORTED), metavar="NAME",
        help=held_out,
    )  # fmt: skip
    shares = f"shares of the knee; {loads}"
    made.add_argument(
        "--loads", nargs="+", type=float, default=list(LOADS), metavar="SHARE", help=shares
    )
    per_point = "requests of each point (%(default)s); P99 needs 662"
    made.add_argument("--num-requests", type=int, default=700, metavar="N", help=per_point)
    made.add_argument("--model", default="tiny-llama", metavar="NAME", help="%(default)s")
    gpu = "profile of this machine's GPU, e.g. h100x1; without it, the CPU"
    made.add_argument("--hardware", metavar="NAME", help=gpu)
    scale = "factor on the traces' lengths (%(default)s)"
    made.add_argument("--length-scale", type=float, default=0.25, metavar="X", help=scale)
    ttft, tbt = "SLO of TTFT, seconds (%(default)s)", "SLO of TBT, seconds (%(default)s)"
    made.add_argument("--ttft-s", type=float, default=0.25, metavar="S", help=ttft)
    made.add_argument("--tbt-s", type=float, default=0.01, metavar="S", help=tbt)
    made.add_argument("--passes", type=int, default=3, metavar="N", help="%(default)s")
    made.add_argument(
        "--calibrate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="profile the engine before each pass (yes)",
    )
    made.add_argument(
        "--keep",
        action="store_true",
        help="keep the real runs in --runs, and simulate again: for torch with the calibration"
        " of each run, for vllm with the calibration in conf/",
    )
    runs = Path("results/runs/fidelity")
    made.add_argument("--runs", type=Path, default=runs, metavar="DIR", help="%(default)s")
    made.add_argument(
        "--out", type=Path, metavar="DIR", help=f"default: {PUBLISHED} (for vllm {PUBLISHED}/vllm)"
        " for a whole report, and --runs for a part of it",
    )  # fmt: skip
    return made


def report_folder(arguments: argparse.Namespace) -> Path:
    """engine=torch's whole report is the one that simulated figures quote; vLLM's lies beside it,
    and one of anything else than the defaults where the runs are."""
    asked: Path | None = arguments.out
    if asked is not None:
        return asked
    whole = parser().parse_args([])
    names = (
        "workloads", "loads", "num_requests", "model", "length_scale", "ttft_s", "tbt_s", "passes",
        "calibrate", "keep",
    )  # fmt: skip
    if any(getattr(arguments, name) != getattr(whole, name) for name in names):
        folder: Path = arguments.runs
    else:
        folder = PUBLISHED
    if arguments.engine == "torch" and folder == PUBLISHED:
        return folder
    return folder / str(arguments.engine)


def check(arguments: argparse.Namespace) -> None:
    """UsageError for what cannot be measured, before anything is."""
    _check_numbers(arguments)
    if arguments.hardware and arguments.engine == "vllm":
        raise UsageError(
            f"--hardware {arguments.hardware} is of --engine torch alone: leave it out"
        )
    zoo.model(zoo.model_name(arguments.model))
    out = report_folder(arguments)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {out}: {error.strerror}") from error
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
    """Where the runs on the real engine are, of every knee and point."""
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
