"""Engine generations: what a file of conf/engine/profile says that an engine adds to its device.

`${engine_costs:NAME}` in a configuration stands for the costs of that file, so that a run's
configuration, its manifest and its digest hold the numbers and not a name alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.errors import UsageError

PROFILES = Path(__file__).resolve().parents[1] / "conf" / "engine" / "profile"


def names() -> list[str]:
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def costs(name: str) -> DictConfig | None:
    """The costs of profile `name`; None: those that the hardware's calibration has. Raises
    UsageError for one that there is no file of."""
    if name not in names():
        raise UsageError(f"engine.profile={name} is unknown; valid: {', '.join(names())}")
    found: Any = OmegaConf.load(PROFILES / f"{name}.yaml").costs
    return found if found is None else OmegaConf.create(found)


OmegaConf.register_new_resolver("engine_costs", costs, replace=True)
