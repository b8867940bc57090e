"""Shows that a sweep survives `kill -9`: 20 times, at random moments, of 200 simulated points.

    python -m tests.benchmarks.sweep_kills --points 200 --kills 20 --workers 2 [--launcher ray]

An undisturbed sweep comes first, under joblib or on a Ray that each command starts. Then the same
command is killed again and again, at a random moment after it has begun to make a run: in turn with
all its processes, and alone, so that its workers go on for a while beside the next try.
The last one may finish. Passes if every point's schedule, requests, events and summary are equal
byte for byte (but for `wall_s`, how long the simulation took), and no point that was complete was
run again. Exit status 1 if not. Needs hydra-joblib-launcher or hydra-ray-launcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Container
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from harness.files import write_json
from harness.records.manifest import git_revision, machine, versions

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (
    "-m", "harness", "+system=vllm", "+workload=burstgpt", "engine=sim", "hardware=a100x1",
    "model=llama2-7b", "workload.num_requests=8", "tracking=none", "progress=false", "figure=null",
    "-m", "hydra.sweeper.max_batch_size=20",  # Hydra composes it first
)  # fmt: skip
LAUNCHERS = {  # `local`: a Ray of the command's own, whatever else runs here
    "joblib": ["hydra.launcher.n_jobs={}"],
    "ray": ["+hydra.launcher.ray.init.num_cpus={}", "hydra.launcher.ray.init.address=local"],
}
COMPARED = ("schedule.parquet", "requests.parquet", "events.parquet", "summary.json")


class Sweep(NamedTuple):
    launcher: str
    num_points: int
    num_workers: int


def begun(folder: Path, sweep: Sweep) -> subprocess.Popen[bytes]:
    words = [
        *COMMAND, f"hydra/launcher={sweep.launcher}",
        *(word.format(sweep.num_workers) for word in LAUNCHERS[sweep.launcher]),
        f"seed=range(0,{sweep.num_points})", f"runs_dir={folder}",
    ]  # fmt: skip
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )


def finished(folder: Path, sweep: Sweep) -> float:
    """Seconds that the sweep took to its end."""
    began_s = time.monotonic()
    status = begun(folder, sweep).wait()
    if status != 0:
        sys.exit(f"the sweep in {folder} ended with status {status}")
    return time.monotonic() - began_s


def complete(folder: Path) -> dict[str, int]:
    """{run: when its summary was written, in ns} of the runs whose manifest says complete."""
    found = {}
    for path in folder.glob("*/manifest.json"):
        with suppress(FileNotFoundError):  # of a run that is being made
            if json.loads(path.read_text())["status"] == "complete":
                found[path.parent.name] = (path.parent / "summary.json").stat().st_mtime_ns
    return found


def content(run: Path) -> dict[str, bytes]:
    """What a run holds, but for the time that its simulation took."""
    files = {name: (run / name).read_bytes() for name in COMPARED}
    summary = json.loads(files["summary.json"])
    del summary["wall_s"]
    return files | {"summary.json": json.dumps(summary).encode()}


def killed(folder: Path, sweep: Sweep, waits_s: list[float]) -> list[int]:
    """Kills the sweep each of `waits_s` after it has begun a run that is not complete, and starts
    it anew. How many points were complete after each. Exits where one was made again."""
    counts = []
    for number, wait_s in enumerate(waits_s, 1):
        before = complete(folder)
        process = begun(folder, sweep)
        while process.poll() is None and not at_work(folder, before):
            time.sleep(0.005)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        if number % 2:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        after = complete(folder)
        again = [run for run, at_ns in before.items() if after.get(run) != at_ns]
        if again:
            sys.exit(f"kill {number}: {again[0]} was complete, and was made again")
        how = "with its workers" if number % 2 else "alone"
        print(f"kill {number} after {wait_s:.2f} s, {how}: {len(after)} complete", flush=True)
        counts.append(len(after))
    return counts


def at_work(folder: Path, before: Container[str]) -> bool:
    """Whether a run is claimed that was not complete `before`, by a process that lives."""
    for claim in folder.glob("*/.lock"):
        if claim.parent.name not in before:
            with suppress(OSError, ValueError):
                if psutil.pid_exists(json.loads(claim.read_text())["process"]):
                    return True
    return False


def differing(one: Path, other: Path) -> list[str]:
    runs = sorted(path.parent.name for path in one.glob("*/manifest.json"))
    others = sorted(path.parent.name for path in other.glob("*/manifest.json"))
    if runs != others:
        return [f"{len(runs)} runs and {len(others)}"]
    return [run for run in runs if content(one / run) != content(other / run)]


def main() -> int:
    about = ArgumentParser("python -m tests.benchmarks.sweep_kills", description=__doc__)
    about.add_argument("--points", type=int, default=200)
    about.add_argument("--kills", type=int, default=20)
    about.add_argument("--workers", type=int, default=2)
    about.add_argument("--launcher", choices=LAUNCHERS, default="joblib")
    about.add_argument("--seed", type=int, default=0, help="of the moments")
    about.add_argument("--one", action="store_true", help="time the sweep with one worker, too")
    about.add_argument("--json", type=Path, help="where to write what came of it")
    given = about.parse_args()
    sweep = Sweep(given.launcher, given.points, given.workers)
    with tempfile.TemporaryDirectory() as made:
        whole, disturbed = Path(made) / "whole", Path(made) / "disturbed"
        took_s = {}
        if given.one:
            took_s[1] = finished(Path(made) / "one", sweep._replace(num_workers=1))
            print(f"{given.points} points with 1 worker: {took_s[1]:.0f} s", flush=True)
        took_s[given.workers] = whole_s = finished(whole, sweep)
        print(f"{given.points} points with {given.workers} workers: {whole_s:.0f} s", flush=True)
        rng = np.random.default_rng(given.seed)
        longest_s = whole_s / given.kills  # points are left at the last kill, too
        waits_s = [float(wait_s) for wait_s in rng.uniform(0, longest_s, given.kills)]
        counts = killed(disturbed, sweep, waits_s)
        rest_s = finished(disturbed, sweep)
        print(f"the last one finished in {rest_s:.0f} s")
        differ = differing(whole, disturbed)
        left = [path for path in disturbed.rglob(".*") if path.is_file()]
        print(f"{len(differ)} of {given.points} points differ; {len(left)} hidden files are left")
    if given.json:
        found = {
            "date": date.today().isoformat(), "machine": machine(), "git": git_revision(),
            "versions": versions(), "launcher": given.launcher, "points": given.points,
            "undisturbed_s_by_workers": took_s, "workers": given.workers, "kills_after_s": waits_s,
            "complete_after_kills": counts, "rest_s": rest_s, "differing": differ,
            "hidden_files_left": len(left),
        }  # fmt: skip
        write_json(given.json, found)
    return 1 if differ or left else 0


if __name__ == "__main__":
    sys.exit(main())
