"""Everything that only a GPU can tell, in one command, each step bounded in time.

    python -m tests.gpu [--only STEP …] [--hardware PROFILE] [--out DIR]

Without a CUDA device it lists what would run. A step that has passed at this revision is not run
again, unless there are uncommitted changes; its folder has its log and what it measured. After
each step there are gpu.json, its page gpu.md and its picture gpu.png, of all steps so far. Exit
status: 1 if a step failed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.calibrate import zoo
from harness.engine.worker import PR_SET_PDEATHSIG
from harness.files import read_json, write_json, write_text
from harness.records import gpu_monitor
from harness.records.manifest import git_revision, machine, versions
from plots import gpu as picture
from tests.gpu.page import collected, page
from tests.gpu.steps import STEPS, Step, command

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "results" / "runs" / "gpu"


def profile_of(gpu: str) -> str | None:
    """A hardware profile of one GPU of this name; None: there is none."""
    words = gpu.lower()
    return next((f"{name}x1" for name in ("h100", "h200", "a100") if name in words), None)


def run(step: Step, hardware: str, out: Path) -> dict[str, Any]:
    """What came of `step`, whose output is in `out`. It and what it started are killed at its
    limit."""
    out.mkdir(parents=True, exist_ok=True)
    words = command(step, hardware, out)
    begun_s = time.monotonic()
    with (out / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_die_with_parent,
        )  # fmt: skip
        try:
            code = process.wait(step.limit_s)
            status = "passed" if code == 0 else f"failed: exit status {code}"
        except subprocess.TimeoutExpired:
            status = f"failed: longer than {step.limit_s} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    lines = (out / "log.txt").read_text(errors="replace").splitlines()
    return {
        "step": step.name, "asks": step.asks, "status": status,
        "seconds": round(time.monotonic() - begun_s, 1), "last_line": lines[-1] if lines else "",
        "command": ["python", *words],
    }  # fmt: skip


def _die_with_parent() -> None:
    """A step must not go on beside the command that resumes."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def skipped(step: Step, num_gpus: int) -> str | None:
    """Why `step` cannot run here; None: it can."""
    if num_gpus < step.num_gpus:
        return f"skipped: {step.num_gpus} GPUs are needed, {num_gpus} are here"
    if step.needs and find_spec(step.needs) is None:
        return f"skipped: {step.needs} is not installed"
    return None


def result(
    step: Step, hardware: str, out: Path, num_gpus: int, revision: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What came of `step`, now or, where it passed, earlier at this revision; kept in `out`."""
    kept = out / "result.json"
    if kept.exists() and not (revision or {}).get("dirty"):
        earlier = read_json(kept)
        if earlier["status"] == "passed" and earlier["revision"] == revision:
            print(f"{step.name:14} passed before")
            return earlier
    why = skipped(step, num_gpus)
    nothing = {"step": step.name, "asks": step.asks, "status": why, "seconds": 0, "last_line": ""}
    found = (nothing if why else run(step, hardware, out)) | {"revision": revision}
    out.mkdir(parents=True, exist_ok=True)
    write_json(kept, found)
    print(f"{step.name:14} {found['status']} ({found['seconds']:.0f} s)", flush=True)
    return found


def earlier(out: Path, revision: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """What came of each step at this revision before; nothing where it has uncommitted changes."""
    if (revision or {}).get("dirty"):
        return {}
    files = (out / step.name / "result.json" for step in STEPS)
    found = [read_json(file) for file in files if file.exists()]
    return {row["step"]: row for row in found if row["revision"] == revision}


def chosen_steps(names: Sequence[str] | None) -> list[Step]:
    return [step for step in STEPS if not names or step.name in names]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__.splitlines()[0])
    names = [step.name for step in STEPS]
    made.add_argument("--only", nargs="+", choices=names, metavar="STEP", help=", ".join(names))
    told = "profile of one GPU of this machine, by default by its name"
    made.add_argument("--hardware", choices=zoo.names("hardware"), metavar="PROFILE", help=told)
    made.add_argument("--out", type=Path, default=OUT, help="folder (results/runs/gpu)")
    return made


def main() -> int:
    chosen = parser().parse_args()
    steps = chosen_steps(chosen.only)
    gpus = gpu_monitor.devices()
    if not gpus:
        limit_min = sum(step.limit_s for step in steps) / 60
        print(f"No CUDA device is here. {len(steps)} steps would run, {limit_min:.0f} min at most:")
        for step in steps:
            print(f"  {step.name:14} {step.limit_s:4} s  {step.asks}")
        return 0
    hardware = chosen.hardware or profile_of(gpus[0]["name"])
    if hardware is None:
        print(f"no profile is known for {gpus[0]['name']}: choose --hardware", file=sys.stderr)
        return 2
    revision = git_revision()
    facts = {"revision": revision, "machine": machine(), "versions": versions()}
    known = earlier(chosen.out, revision)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and its step ends, see `run`
    for step in steps:
        known[step.name] = result(step, hardware, chosen.out / step.name, len(gpus), revision)
        found = [known[each.name] for each in STEPS if each.name in known]
        made = collected(facts | {"hardware": hardware}, found, chosen.out)
        write_json(chosen.out / "gpu.json", made)
        write_text(chosen.out / "gpu.md", page(made))
        picture.draw(chosen.out)
    print(f"page: {chosen.out / 'gpu.md'}")
    return int(any(known[step.name]["status"].startswith("failed") for step in steps))


if __name__ == "__main__":
    raise SystemExit(main())
