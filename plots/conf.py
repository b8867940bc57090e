"""Models, hardware and constants, as conf/ has them, for what is computed without a run."""

from __future__ import annotations

from typing import Any

import yaml

from harness.calibrate.zoo import CONF, hardware
from harness.calibrate.zoo import model as spec

__all__ = ["hardware", "read", "spec"]


def read(name: str) -> dict[str, Any]:
    """The file conf/`name`.yaml."""
    found: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return found
