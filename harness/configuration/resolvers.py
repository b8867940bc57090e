"""What `${NAME:…}` in a configuration stands for, so that configuration, manifest and digest hold
the values and not a name alone.

    ${in_file:FILE,KEY}       what KEY has in the JSON object of FILE, e.g. where models are.
                              FILE is relative to where the command was given
    ${engine_costs:NAME}      what a file of conf/engine/profile says that this generation of
                              engines adds to its device
    ${in_conf:FILE,KEY}       the same of a JSON file below conf/, named without its ending
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


def in_file(path: str, key: str) -> Any:
    """The value of `key` in the JSON file. Raises UsageError for a file without such a key, or that
    is no JSON object."""
    found = read_json(Path(path))
    if key not in found:
        raise UsageError(f"{path} has no {key}; keys: {', '.join(sorted(found)) or 'none'}")
    value = found[key]
    return OmegaConf.create(value) if isinstance(value, dict | list) else value


def in_conf(name: str, key: str) -> Any:
    """The value of `key` in conf/`name`.json. Raises UsageError where there is none."""
    path = CONF / f"{name}.json"
    found = read_json(path) if path.is_file() else None
    if found is None or found.get(key) is None:
        why = "is missing" if found is None else f"has no {key}, or null"
        known = ", ".join(_beside(path)) or "none"
        raise UsageError(
            f"conf/{name}.json {why}; files there: {known}; or give the value yourself, as "
            f"KEY=VALUE for the KEY that says ${{in_conf:…,{key}}} in the experiment's file"
        )
    return in_file(str(path), key)


def _beside(path: Path) -> list[str]:
    """The files where `path` would be, of every engine profile."""
    folders = {path.parent, *(path.parent.parent / name for name in engine_profiles())}
    files = [each for folder in folders for each in folder.glob("*.json")]
    return sorted(f"{each.parent.name}/{each.stem}" for each in files)


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


for _resolver in (in_file, in_conf, engine_costs, seconds_for, of_profile):
    OmegaConf.register_new_resolver(_resolver.__name__, _resolver, replace=True)
