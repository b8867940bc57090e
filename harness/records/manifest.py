"""What a run ran on and from: enough to run it again, and to say where a figure came from."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil

from harness import compiled
from harness.records import gpu_monitor

PROJECT = Path(__file__).resolve().parents[2]
PUBLISHED = "results/published"  # tables and pictures, which runs are not made of
ERROR = f"{PUBLISHED}/fidelity"  # but the simulator's error, by which runs are labelled
PACKAGES = (
    "datasets", "httptools", "hydra-core", "numpy", "pandas", "pyarrow", "scipy",
    "tokenizers", "torch", "transformers", "uvloop", "vllm", "wandb",
)  # fmt: skip

Status = Literal["begun", "complete", "aborted"]  # begun: under way, or killed


def surroundings() -> dict[str, Any]:
    """What the manifest of a run under way says of this checkout and this machine."""
    return {
        "git": git_revision(),
        "versions": versions(),
        "simulator": compiled.state(),
        "machine": machine(),
        "gpu": None,
    }


def ended(
    manifest: Mapping[str, Any],
    status: Status,
    *,
    reason: str = "",
    resolved: Mapping[str, Any],
    gpu: Mapping[str, Any] | None,
    at: datetime,
) -> dict[str, Any]:
    """`manifest` with how the run ended: `reason` of an abort in a sentence, `gpu` from
    GpuMonitor.summary, `resolved` as the engine gives it now."""
    return dict(manifest) | {
        "status": status,
        "reason": reason,
        "ended_utc": utc(at),
        "engine": dict(resolved),
        "gpu": gpu,
    }


def command_line(argv: Sequence[str]) -> list[str]:
    """`argv` as it was typed: for a program of this project `python -m MODULE …`."""
    program = Path(argv[0])
    if not program.is_relative_to(PROJECT):
        return list(argv)
    module = ".".join(program.relative_to(PROJECT).with_suffix("").parts)
    return ["python", "-m", module.removesuffix(".__main__"), *argv[1:]]


def hash_of(config: Mapping[str, Any]) -> str:
    """12 hex digits that two runs share if, and only if, their resolved configs are equal."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def git_revision() -> dict[str, Any] | None:
    """revision and whether tracked or new files differ from it, in a git checkout or an unpacked
    archive (whose new files do not show); else None. As this process first saw it, whose code it
    is. PUBLISHED is no code, but for ERROR: a figure that was drawn does not make the next one's
    runs dirty."""
    if shutil.which("git") is None or not (PROJECT / ".git").exists():
        return archived_revision(PROJECT)

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(PROJECT), *arguments], capture_output=True, text=True, check=False
        ).stdout.strip()

    code = git("status", "--porcelain", "--", ".", f":(exclude){PUBLISHED}")
    labels = git("status", "--porcelain", "--", ERROR)
    return {"revision": git("rev-parse", "HEAD"), "dirty": bool(code or labels)}


def archived_revision(folder: Path) -> dict[str, Any] | None:
    """The revision that `make archive` packed, and whether a file of code or of ERROR differs from
    its SHA256SUMS."""
    revision, sums = folder / "REVISION", folder / "SHA256SUMS"
    if not (revision.is_file() and sums.is_file()):
        return None

    def changed(line: str) -> bool:
        path = folder / line[66:]
        return not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != line[:64]

    listed = sums.read_text().splitlines()
    code = [
        line for line in listed
        if not line[66:].startswith(f"{PUBLISHED}/") or line[66:].startswith(f"{ERROR}/")
    ]  # fmt: skip
    return {"revision": revision.read_text().strip(), "dirty": any(map(changed, code))}


@cache
def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Python and the packages that shape a result, as far as they are installed."""
    installed = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return {"python": platform.python_version()} | installed


def machine() -> dict[str, Any]:
    """The machine that the harness ran on, which in a simulation is not the one simulated."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpu_monitor.devices(),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def utc(time: datetime) -> str:
    """`time`, which has a time zone, as the manifest has it."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds")
