"""Runs that a parity report compares: one schedule, served for real and in simulation.

Each point is two ordinary runs of the same command but for the engine; that they replayed the
very same schedule is checked by its sha256, not assumed. Knows nothing of statistics.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.calibrate import zoo
from harness.calibrate.__main__ import main as calibrate
from harness.calibrate.profiles import Floats
from harness.configuration.command_line import INTERRUPTED
from harness.configuration.config import typed
from harness.configuration.threads import engine_threads
from harness.cost.hardware import Calibration, pair_key
from harness.errors import RunError, UsageError
from harness.fidelity.play import middle_per_s
from harness.records.run_folder import FinishedRun
from harness.records.token_log import TokenLog
from harness.running.sweep_points import run_dir_word

# Rows that calibration never sees: it serves synthetic lengths. Nor did those who chose the form of
# the cost model, the engine's warm-up or the calibration, who had others. But two terms were tried
# on the report of these, and left out: they are used up, and the next one should have others.
# Shorter ones let a CPU serve enough requests for a P99 in minutes; both kinds of run see the same.
HELD_OUT = {
    "azure_code": ("workload.window.rows=[5000,5700]",),
    "azure_conv": ("workload.window.rows=[10000,10700]",),
    "burstgpt": ("workload.dataset.files.without_fails_1.beginning=null", "seed=2"),
    # Lengths without timestamps, arrivals drawn: by name alone, in no report of the defaults.
    "arxiv": ("workload.arrivals.rate_per_s=null",),
    "lmsys": ("workload.arrivals.rate_per_s=null",),
    "sharegpt": ("workload.arrivals.rate_per_s=null",),
}
REPORTED = ("azure_code", "azure_conv", "burstgpt")  # where nothing else is asked for
COMMON = ("+system=vllm", "tracking=none", "progress=false", "again=true")


@dataclass(frozen=True, slots=True)
class Setting:
    """What every point of a report shares. The SLO is so tight that a loaded engine misses some."""

    model: str
    profile: str  # of this machine and engine, as `harness.calibrate measure` wrote it
    length_scale: float  # on the traces' prompts and outputs
    ttft_s: float
    tbt_s: float

    def overrides(self) -> tuple[str, ...]:
        scale = f"{self.length_scale:g}"
        return (
            f"model={self.model}",
            f"workload.lengths.scale_prompt={scale}", f"workload.lengths.scale_output={scale}",
            f"slo.ttft_s={self.ttft_s:g}", f"slo.tbt_s={self.tbt_s:g}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadPoint:
    workload: str
    rate_per_s: float
    num_requests: int
    setting: Setting

    def overrides(self) -> tuple[str, ...]:
        return (
            *COMMON,
            *self.setting.overrides(),
            f"+workload={self.workload}",
            *HELD_OUT[self.workload],
            f"workload.num_requests={self.num_requests}",
            f"workload.scale.to_rate_per_s={self.rate_per_s:.6g}",
        )


def profile(engine: str, model: str, hardware: str | None = None) -> None:
    """Calibrates the engine here. Raises RunError where that fails."""
    words = ["--engine", engine, "--model", model]
    words += ["--hardware", hardware] if hardware else []
    status = calibrate(["measure", *words])
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise RunError("calibration failed")


def own(engine: str, profile: str) -> tuple[str, ...]:
    """What a real engine needs to be the one that was calibrated. vLLM's servers have no profile of
    theirs: `local` says that they are here."""
    if engine == "torch":
        return f"hardware={profile}", f"engine.num_threads={engine_threads()}"
    return ("hardware=local",)


def run(words: Sequence[str], run_dir: Path, engine: str) -> FinishedRun:
    """What `words` ask for, served by `engine`, its files in `run_dir`. RunError with the command's
    own words if it broke."""
    command = [sys.executable, "-m", "harness", *words, f"engine={engine}"]
    done = subprocess.run(
        [*command, run_dir_word(run_dir)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return FinishedRun.load(run_dir)


def serve(point: LoadPoint, run_dir: Path, real: str, keep: bool) -> FinishedRun:
    """The point on a real engine; with `keep`, the run that an earlier report left there."""
    if keep:
        served = FinishedRun.load(run_dir)
    else:
        served = run([*point.overrides(), *own(real, point.setting.profile)], run_dir, real)
    found = served.summary["num_requests"]
    if found != point.num_requests:
        raise UsageError(
            f"--num-requests {point.num_requests}: {point.workload} has {found} rows held out"
        )
    return served


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


def simulate(
    served: FinishedRun, words: Sequence[str], setting: Setting, run_dir: Path,
    time_scale: float = 1.0,
) -> FinishedRun:  # fmt: skip
    """What `words` ask for in simulation, beside its run on a real engine: on one schedule, with
    equally many KV blocks of one size and the same limits, by the profile of that engine, whose
    times are taken `time_scale` times."""
    engine = served.manifest["engine"]
    times = known(calibration(served, setting), setting, time_scale)
    alike = f"hardware={setting.profile}", *same_memory(engine), *same_limits(engine), *times
    simulated = run([*words, *alike], run_dir, "sim")
    hashes = {run.manifest["schedule_sha256"] for run in (served, simulated)}
    if len(hashes) != 1:
        raise RunError(f"{run_dir}: the two runs replayed different schedules")
    if simulated.invalid:
        raise RunError(f"{run_dir}: the simulation is not VALID: {simulated.invalid}")
    return simulated


def calibration(served: FinishedRun, setting: Setting) -> Calibration:
    """What was known of the machine when `served` ran: its configuration kept it. Servers that
    schedule by themselves ran with no profile of theirs: the one that is in conf/ now."""
    kept: Mapping[str, Any] = served.config["hardware"]
    if kept["name"] != setting.profile:
        return zoo.hardware(setting.profile).calibration
    return typed(dict(kept["calibration"]), Calibration, "hardware.calibration")


def known(found: Calibration, setting: Setting, time_scale: float) -> tuple[str, ...]:
    """Overrides that give a simulation the measured times of `found`, taken `time_scale` times."""
    pair = pair_key(setting.model, 1)
    times = {key: value * time_scale for key, value in asdict(found.measured[pair]).items()}
    told = ",".join(f"{key}:{value!r}" for key, value in times.items())
    above = {key: getattr(found, key) * time_scale for key in ("turnaround_s", "path_s")}
    where = "hardware.calibration"
    return (
        # As a mapping: a name like llama3.2-1b has a dot, which ends a key of an override.
        f"++{where}.measured={{{pair}:{{{told}}}}}",
        *(f"{where}.{key}={value!r}" for key, value in above.items()),
    )


def capacity_per_s(point: LoadPoint, run_dir: Path, real: str, keep: bool) -> float:
    """Requests/s that the engine completes when all of the point's arrive at once: the knee of its
    load curve."""
    served = serve(replace(point, rate_per_s=1e6), run_dir, real, keep)
    log = TokenLog.from_table(served.requests)
    return steady_per_s(log.last_s[log.completed])


def steady_per_s(times_s: Floats) -> float:
    """Raises RunError where the completions are too few to show a rate."""
    if len(times_s) < 10:
        raise RunError(f"{len(times_s)} completed requests do not show a rate: at least 10")
    return middle_per_s(times_s)
