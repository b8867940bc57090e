"""conf/experiment/NAME.yaml: the runs of its sweep, each configured as Hydra would.

Hydra composes each choice of groups once, which takes as long as a small run; values, which it
would set after composing, are set on a copy.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.configuration.options import config_sentence, named_options
from harness.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
QUIET = ("tracking=none", "progress=false", "figure=null")


@dataclass(frozen=True, slots=True)
class Composed:
    """An experiment with options of its groups, to be sent to any process."""

    choices: dict[str, str]  # the option of each group
    pickled: bytes  # the DictConfig: unpickling takes a tenth of what copying it does

    def configured(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration with the values among `overrides`; their groups are what it was
        composed with."""
        config: DictConfig = pickle.loads(self.pickled)
        for override in _parsed([word for word in overrides if not _is_group(word)]):
            try:
                OmegaConf.update(config, override.key_or_group, override.value())
            except OmegaConfBaseException as error:
                raise UsageError(config_sentence(error, CONF)) from error
        return config


@cache
def sweep(experiment: str) -> tuple[str, list[list[str]]]:
    """The engine of an experiment, and the overrides of each of its runs; not to be changed."""
    hydra = composing([f"+experiment={experiment}"]).hydra
    words = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
    batches = BasicSweeper.split_arguments(_parsed(words), None)
    return hydra.runtime.choices["engine"], [list(overrides) for overrides in batches[0]]


def composed(words: Sequence[str]) -> Composed:
    """What overrides give, which may name an experiment and options of groups."""
    config = composing(words)
    choices = dict(config.hydra.runtime.choices)
    with open_dict(config):
        del config["hydra"]
    return Composed(choices, pickle.dumps(config))


def groups(overrides: Sequence[str]) -> tuple[str, ...]:
    """The words of `overrides` that choose an option of a group."""
    return tuple(word for word in overrides if _is_group(word))


@cache
def seed_in(override: str) -> str:
    """The seed that `override` sets, or the option that it chooses; empty: none."""
    key, _, value = override.partition("=")
    if key == "seed":
        return value
    group, _, package = key.partition("@")
    path = CONF / group / f"{value}.yaml"
    chosen = package == "_global_" and path.is_file()
    return str(OmegaConf.select(OmegaConf.load(path), "seed", default="")) if chosen else ""


def conf() -> None:
    """Makes conf/ known to Hydra's `compose` in this process."""
    if not GlobalHydra.instance().is_initialized():
        initialize_config_dir(str(CONF), version_base="1.3")


def composing(words: Sequence[str]) -> DictConfig:
    """Composes the configuration with Hydra's own node, which says what was chosen and what is
    swept. Raises UsageError for a group, an option or a key that there is not."""
    conf()
    named_options(words)
    try:
        config: DictConfig = compose("config", [*words, *QUIET], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(config_sentence(error, CONF)) from error
    return config


def _is_group(override: str) -> bool:
    return (CONF / re.split("[@=]", override)[0]).is_dir()


def _parsed(overrides: list[str]) -> list[Override]:
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise UsageError(config_sentence(error, CONF)) from error
    return parsed
