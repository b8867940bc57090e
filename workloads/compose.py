"""From a name on the command line to a `Workload`: the only Hydra code in this package.

The same YAML files, keys and seed as `python -m harness +workload=NAME`, so a schedule made here
is the one that a run with the same arguments replays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.configuration.checks import require
from harness.configuration.config import build, typed
from harness.configuration.options import named_options, plain
from harness.errors import UsageError
from workloads.data import DataHome
from workloads.workload import Workload

CONF = Path(__file__).resolve().parent.parent / "conf"


@dataclass(kw_only=True, slots=True)
class Seed:
    seed: int


@cache
def titles() -> dict[str, str]:
    """Every workload's name and the title of its dataset; joined ones have none of their own."""
    paths = sorted((CONF / "workload").glob("*.yaml"))
    found = {path.stem: OmegaConf.load(path) for path in paths}
    return {name: each.dataset.title for name, each in found.items() if "dataset" in each}


def composed(name: str, overrides: list[str]) -> DictConfig:
    if name not in titles():
        raise UsageError(f"no workload is called {name!r}; there are {', '.join(titles())}")
    for text in overrides:
        form = f"{text!r} is not of the form key=value, as in workload.scale.rate=2"
        require("=" in text, form)
    named_options(overrides)
    # only these parts of config.yaml matter here; its other groups need not be composed
    defaults = OmegaConf.load(CONF / "config.yaml").defaults
    groups = [group for entry in defaults if entry != "_self_" for group in entry]
    used = ("model", "model_set")  # what workload.models may refer to
    unused = [f"~{group}" for group in groups if not group.startswith(("override ", *used))]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config: DictConfig = compose("config", [*unused, f"+workload={name}", *overrides])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError(" ".join(str(error).split())) from error
    return config


def workload(config: DictConfig) -> Workload:
    values = plain(config)
    seed = typed({key: values[key] for key in ("seed",) if key in values}, Seed, "config").seed
    data: DataHome = build(values.get("data", {}), "data")
    made: Workload = build(values.get("workload", {}), "workload", data=data, seed=seed)
    return made
