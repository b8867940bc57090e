"""Rates that a profiler has found, for experiments that load a model by them.

`${stable_rate:MODEL,TP,HARDWARE,WORKLOAD}` in a configuration stands for the stable rate in the
profile of that name, and `${seconds_for:REQUESTS,RATE_PER_S}` for how long so many take to arrive.
A run's configuration, manifest and digest hold the numbers.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from harness.errors import UsageError
from harness.files import read_json

PROFILES = Path(__file__).resolve().parents[1] / "conf" / "system" / "aqua" / "profiles"
MAKE = "python -m plots.aqua_profiles"


def profile_name(model: str, tp: int, hardware: str, workload: str) -> str:
    return f"{model}-tp{tp}-{hardware}-{workload}"


def stable_rate(model: str, tp: int, hardware: str, workload: str) -> float:
    """Requests/s. Raises UsageError where no profile is of these, or has no rate."""
    name = profile_name(model, tp, hardware, workload)
    path = PROFILES / f"{name}.json"
    rate = read_json(path).get("stable_rate_per_s") if path.is_file() else None
    if not isinstance(rate, int | float):
        known = ", ".join(sorted(each.stem for each in PROFILES.glob("*.json"))) or "none"
        raise UsageError(
            f"no stable rate of {name} is known; profiles: {known}; set "
            f"workload.arrivals.rate_per_s, or profile it ({MAKE})"
        )
    return float(rate)


def seconds_for(requests: float, rate_per_s: float) -> float:
    """In whole milliseconds."""
    if not rate_per_s > 0:
        raise UsageError(f"rate_per_s={rate_per_s:g} must be above 0")
    return round(requests / rate_per_s, 3)


OmegaConf.register_new_resolver("stable_rate", stable_rate, replace=True)
OmegaConf.register_new_resolver("seconds_for", seconds_for, replace=True)
