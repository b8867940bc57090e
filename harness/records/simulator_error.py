"""The simulator's error as last measured and committed: it travels with every simulated run.

A report holds for the device that it was measured on and for iteration times from the source that
its runs had. On GPUs it is of the engine profile with which published runs were replayed
(`harness.fidelity.gpu`). Any other device, source or profile is said not to have been measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.files import read_json

NOT_MEASURED_POOLED = "simulator error: not measured where models take turns on instances"
GPU_METRICS = {"e2e": "E2E", "tpot": "TPOT", "ttft": "TTFT", "capacity": "capacity"}
PARITY = Path(__file__).resolve().parents[2] / "results/published/fidelity"


@cache
def not_measured_elastic() -> str:
    """Of runs in which weights and KV move: what is known is the error of single operations."""
    said = "simulator error: not measured where weights and KV move between instances"
    path = PARITY / "elastic.json"
    if not path.is_file():
        return said
    found = read_json(path)["held_out"][0]  # of all operations
    return (
        f"{said}; single operations alone on GPUs, {found['rows']} published times: "
        f"{found['mean_abs_pct']:.0f} % (worst {found['worst_pct']:+.0f})"
    )


def simulator_error(
    device: str, profile: str, sources: Collection[str], engine: str | None = None
) -> str:
    """One line for runs on `device`, as the hardware profile called `profile` has it, with
    iteration times from `sources` ("measured", "device law", "datasheet"). `engine`: the engine's
    profile (`engine.profile`); None: a run from before there were any."""
    if by_metric := gpu_errors().get(device, {}).get(engine or ""):
        return _of_gpu(device, str(engine), by_metric)
    if report := report_of(device, profile, sources):
        return str(report["headline"])
    by = " and ".join(sorted("measurement" if each == "measured" else each for each in sources))
    return f"simulator error: not measured for {device}{by and f' with iteration times by {by}'}"


def report_of(device: str, profile: str, sources: Collection[str]) -> dict[str, Any] | None:
    """The report that holds for a CPU's runs; None: there is none."""
    of_device = [report for report in _reports() if report["device"] == device]
    # One device may have a profile for each engine that was calibrated on it.
    own = [report for report in of_device if report["setting"]["profile"] == profile]
    return next((each for each in [*own, *of_device] if set(sources) == {each["basis"]}), None)


def _of_gpu(device: str, engine: str, by_metric: Mapping[str, Any]) -> str:
    told = [
        f"{name} {found['mean_abs_error_pct']:g} % (worst {found['worst_error_pct']:+g}, "
        f"{found['points']} point{'s' * (found['points'] != 1)})"
        for metric, name in GPU_METRICS.items()
        if (found := by_metric.get(metric))
    ]
    return (
        f"simulator error of {device} with engine.profile={engine}, mean over loads of real vLLM "
        f"that nothing was fitted to: {', '.join(told)}"
    )


@cache
def gpu_errors() -> dict[str, Any]:
    """The errors by device, engine profile and metric; empty where no report was made."""
    path = PARITY / "gpu" / "errors.json"
    return read_json(path) if path.is_file() else {}


@cache
def _reports() -> tuple[dict[str, Any], ...]:
    """The reports that are committed: engine=torch's first."""
    paths = (PARITY / "parity.json", PARITY / "vllm" / "parity.json")
    return tuple(read_json(path) for path in paths if path.is_file())
