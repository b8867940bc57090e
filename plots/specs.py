"""Models and hardware of conf/, for what figures compute without a run."""

from __future__ import annotations

import yaml
from hydra import compose

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.experiments.compose import CONF
from harness.model_spec import ModelSpec


def spec(name: str) -> ModelSpec:
    return ModelSpec(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))


def hardware(name: str) -> Hardware:
    options = plain(compose("config", overrides=[f"hardware={name}"]).hardware)
    found: Hardware = typed(options, Hardware, "hardware")
    return found
