"""conf/experiment/NAME.yaml: the runs of its sweep, each configured as Hydra would.

Hydra composes each choice of groups once, which takes as long as a small run; values, which it
would set after composing, are set on a copy.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
QUIET = ("tracking=none", "progress=false", "figure=null")


@dataclass(frozen=True, slots=True)
class Composed:
    """An experiment under one choice of groups, for any process."""

    choices: dict[str, str]  # the option of each group
    sweep: list[list[str]]  # the overrides of each of the experiment's runs
    pickled: bytes  # the DictConfig: unpickling takes a tenth of what copying it does

    def configured(self, overrides: Sequence[str]) -> DictConfig:
        """With the values among `overrides`: what it was composed with are their groups."""
        config: DictConfig = pickle.loads(self.pickled)
        for override in _parsed([word for word in overrides if not _is_group(word)]):
            OmegaConf.update(config, override.key_or_group, override.value())
        return config


def composed(experiment: str, groups: Sequence[str] = ()) -> Composed:
    conf()
    words = [f"+experiment={experiment}", *groups, *QUIET]
    config = compose("config", overrides=words, return_hydra_config=True)
    hydra = config.hydra
    with open_dict(config):
        del config["hydra"]
    params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    sweep = BasicSweeper.split_arguments(_parsed(params), None)[0]
    return Composed(dict(hydra.runtime.choices), [list(run) for run in sweep], pickle.dumps(config))


def groups(overrides: Sequence[str]) -> tuple[str, ...]:
    """Those that choose an option of a group."""
    return tuple(word for word in overrides if _is_group(word))


def conf() -> None:
    """Makes conf/ known to Hydra's `compose` in this process."""
    if not GlobalHydra.instance().is_initialized():
        initialize_config_dir(str(CONF), version_base="1.3")


def _is_group(override: str) -> bool:
    return (CONF / re.split("[@=]", override)[0]).is_dir()


def _parsed(overrides: list[str]) -> list[Override]:
    parsed: list[Override] = OverridesParser.create().parse_overrides(overrides)
    return parsed
