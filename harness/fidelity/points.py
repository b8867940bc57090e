"""Runs that a parity report compares: one schedule, served for real and in simulation.

Each point is two ordinary runs of the same command but for the engine; that they replayed the
very same schedule is checked by its sha256, not assumed. Knows nothing of statistics.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine.threads import engine_threads
from harness.errors import RunError
from harness.run_folder import FinishedRun

# Rows that calibration never saw: it measures a grid of lengths, and no trace. A quarter of the
# lengths lets a CPU serve enough requests for a P99 in minutes; both worlds see the same ones.
HELD_OUT = {
    "azure_code": ("workload.window.rows=[3000,3700]",),
    "azure_conv": ("workload.window.rows=[6000,6700]",),
    "burstgpt": ("workload.dataset.beginnings.without_fails_1=[]",),  # too few rows for a P99
}
COMMON = (
    "+system=vllm", "tracking=none", "progress=false", "again=true",
    "workload.lengths.scale_prompt=0.25", "workload.lengths.scale_output=0.25",
    "slo.ttft_s=0.25", "slo.tbt_s=0.01",  # tight enough that a loaded CPU misses some
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    workload: str
    rate_per_s: float
    num_requests: int

    def overrides(self) -> tuple[str, ...]:
        return (
            *COMMON,
            f"+workload={self.workload}",
            *HELD_OUT[self.workload],
            f"workload.num_requests={self.num_requests}",
            f"workload.scale.to_rate_per_s={self.rate_per_s:.6g}",
        )


def own(engine: str) -> tuple[str, ...]:
    """What a real engine needs to be the one that was calibrated."""
    threads = (f"engine.num_threads={engine_threads()}",) if engine == "torch" else ()
    return "hardware=local", *threads


def calibrated(engine: str) -> str:
    """The profile of this machine that `harness.calibrate measure --engine` writes."""
    return "hardware=local_vllm" if engine == "vllm" else "hardware=local"


def run(point: Point, run_dir: Path, engine: str, extra: Sequence[str] = ()) -> FinishedRun:
    """The point served by `engine`, its files in `run_dir`. RunError with its words if it broke."""
    command = [sys.executable, "-m", "harness", *point.overrides(), f"engine={engine}", *extra]
    done = subprocess.run(
        [*command, f"hydra.run.dir={run_dir}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return FinishedRun.load(run_dir)


def serve(point: Point, run_dir: Path, real: str, keep: bool) -> FinishedRun:
    """The point on a real engine; with `keep`, the run that an earlier report left there."""
    return FinishedRun.load(run_dir) if keep else run(point, run_dir, real, own(real))


def same_memory(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that give a simulation the KV memory which `engine`, of a run's manifest, had."""
    by_model: dict[str, int] = engine["num_kv_blocks"]
    if len(by_model) != 1:
        raise RunError(f"a parity run serves one model, not {len(by_model)}: {', '.join(by_model)}")
    (num_kv_blocks,) = by_model.values()
    return f"engine.num_kv_blocks={num_kv_blocks}", f"engine.block_tokens={engine['block_tokens']}"


def same_limits(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """Overrides that give a simulated scheduler the limits which a server said it has."""
    names = ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")
    servers = engine.get("servers", {}).values()  # of vLLM: other engines are scheduled by ours
    return tuple(f"system.{name}={server[name]}" for server in servers for name in names)


def pair(point: Point, run_dir: Path, real: str, keep: bool) -> tuple[FinishedRun, FinishedRun]:
    """(real, simulated) on one schedule, with equally many KV blocks of one size and the same
    limits, by the profile of that engine."""
    served = serve(point, run_dir / real, real, keep)
    engine = served.manifest["engine"]
    extra = (calibrated(real), *same_memory(engine), *same_limits(engine))
    simulated = run(point, run_dir / "sim", "sim", extra)
    hashes = {run.manifest["schedule_sha256"] for run in (served, simulated)}
    if len(hashes) != 1:
        raise RunError(f"{run_dir}: the two runs replayed different schedules")
    return served, simulated


def capacity_per_s(workload: str, run_dir: Path, real: str, num_requests: int, keep: bool) -> float:
    """Requests/s that the engine completes when all arrive at once: the knee of its load curve."""
    point = Point(workload, 1e6, num_requests)
    summary = serve(point, run_dir, real, keep).summary
    return float(summary["num_completed"] / summary["duration_s"])
