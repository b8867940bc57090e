"""What `${NAME:…}` in a configuration stands for, so that configuration, manifest and digest hold
the values and not a name alone.

    ${in_file:FILE,KEY}       what KEY has in the JSON object of FILE, e.g. where models are.
                              FILE is relative to where the command was given
    ${engine_costs:NAME}      what a file of conf/engine/profile says that this generation of
                              engines adds to its device
    ${stable_rate:MODEL,TP,HARDWARE,WORKLOAD,ENGINE}   the stable rate in the profile of that name,
                              made with this engine profile
    ${placement:NAME,ENGINE}    the pairs of consumers and lenders that AQUA's placer made of the
                              profiles of this engine profile
    ${seconds_for:REQUESTS,RATE_PER_S}          how long so many requests take to arrive
    ${of_profile:{NAME: VALUE, …}}              the value of the run's engine profile
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.errors import UsageError
from harness.files import read_json

CONF = Path(__file__).resolve().parents[2] / "conf"
ENGINE_PROFILES = CONF / "engine" / "profile"
STABLE_RATES = CONF / "system" / "aqua" / "profiles"
PLACEMENTS = CONF / "system" / "aqua" / "placements"
MAKE = "python -m plots.aqua_profiles"


def in_file(path: str, key: str) -> Any:
    """The value of `key` in the JSON file. Raises UsageError for a file without such a key, or that
    is no JSON object."""
    found = read_json(Path(path))
    if key not in found:
        raise UsageError(f"{path} has no {key}; keys: {', '.join(sorted(found)) or 'none'}")
    value = found[key]
    return OmegaConf.create(value) if isinstance(value, dict | list) else value


def engine_profiles() -> list[str]:
    """The names of the engine profiles that conf/ has."""
    return sorted(path.stem for path in ENGINE_PROFILES.glob("*.yaml"))


def engine_costs(name: str) -> DictConfig | None:
    """The costs of profile `name`; None: those that the hardware's calibration has. Raises
    UsageError for one that there is no file of."""
    if name not in engine_profiles():
        raise UsageError(f"engine.profile={name} is unknown; valid: {', '.join(engine_profiles())}")
    found: Any = OmegaConf.load(ENGINE_PROFILES / f"{name}.yaml").costs
    return found if found is None else OmegaConf.create(found)


def profile_name(model: str, tp: int, hardware: str, workload: str) -> str:
    return f"{model}-tp{tp}-{hardware}-{workload}"


def stable_rate(model: str, tp: int, hardware: str, workload: str, engine: str) -> float:
    """The stable rate, in requests/s. Raises UsageError where no profile is of these, or has no
    rate."""
    name = f"{engine}/{profile_name(model, tp, hardware, workload)}"
    path = STABLE_RATES / f"{name}.json"
    rate = read_json(path).get("stable_rate_per_s") if path.is_file() else None
    if not isinstance(rate, int | float):
        paths = sorted(STABLE_RATES.glob(f"{engine}/*.json"))
        known = ", ".join(f"{engine}/{each.stem}" for each in paths) or "none"
        raise UsageError(
            f"no stable rate of {name} is known; profiles: {known}; set "
            f"workload.arrivals.rate_per_s, or profile it ({MAKE})"
        )
    return float(rate)


def placement(name: str, engine: str) -> Any:
    """Pairs as `system.pairs` has them. Raises UsageError where there is no such file."""
    path = PLACEMENTS / engine / f"{name}.json"
    if not path.is_file():
        paths = sorted(PLACEMENTS.glob("*/*.json"))
        known = ", ".join(f"{each.parent.name}/{each.stem}" for each in paths) or "none"
        raise UsageError(f"no placement {engine}/{name} is known; placements: {known}")
    return in_file(str(path), "pairs")


def seconds_for(requests: float, rate_per_s: float) -> float:
    """The seconds in which as many requests come at this rate, in whole milliseconds."""
    if not rate_per_s > 0:
        raise UsageError(f"rate_per_s={rate_per_s:g} must be above 0")
    return round(requests / rate_per_s, 3)


def of_profile(values: DictConfig, *, _root_: DictConfig) -> Any:
    """The value of `engine.profile`. Raises UsageError where it has none."""
    profile = OmegaConf.select(_root_, "engine.profile")
    if profile not in values:
        raise UsageError(
            f"engine.profile={profile} has no value here; profiles: {', '.join(map(str, values))}"
        )
    return values[profile]


for _resolver in (in_file, engine_costs, stable_rate, placement, seconds_for, of_profile):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)
