"""Models, hardware and constants, as conf/ has them, for what is computed without a run."""

from __future__ import annotations

from typing import Any

import yaml
from hydra import compose

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.experiments.compose import CONF
from harness.model_spec import ModelSpec


def read(name: str) -> dict[str, Any]:
    """The file conf/`name`.yaml."""
    found: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return found


def spec(name: str) -> ModelSpec:
    return ModelSpec(**read(f"model/{name}"))


def hardware(name: str) -> Hardware:
    node = compose("config", [f"hardware={name}"])  # Hydra is there while figures are drawn
    found: Hardware = typed(plain(node)["hardware"], Hardware, "hardware")
    return found
