"""Runs experiments in tests: in this process for speed, or as the command that a user types."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.running.run import Command, run

ROOT = Path(__file__).resolve().parents[1]


def composed(*overrides: str) -> Any:
    """The configuration that the command line would compose; the caller may change it."""
    return deepcopy(_composed(overrides))  # a quarter of the time of composing


@cache
def _composed(overrides: tuple[str, ...]) -> Any:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


@cache
def model_spec(name: str) -> ModelSpec:
    spec: ModelSpec = typed(plain(composed(f"model={name}").model), ModelSpec, "model")
    return spec


@cache
def hardware_profile(name: str) -> Hardware:
    profile: Hardware = typed(plain(composed(f"hardware={name}").hardware), Hardware, "hardware")
    return profile


def run_here(run_dir: Path, *overrides: str, progress: str = "false") -> dict[str, Any]:
    """Runs in this process without W&B; returns summary.json's content."""
    quiet = ("tracking=none", f"progress={progress}")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [*overrides, *quiet], return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    del config.hydra
    run(config, Command(run_dir, True, choices, overrides))
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def run_command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `python -m harness …` from the project's root and captures what it prints."""
    environment = os.environ | options.pop("env", {})
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=options.pop("timeout", 240),
        **options,
    )
