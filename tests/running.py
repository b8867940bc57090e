"""Runs experiments in tests: in this process for speed, or as the command that a user types."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hydra import compose, initialize_config_dir

from harness.__main__ import main
from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.model_spec import ModelSpec
from harness.running.run import Command, run

ROOT = Path(__file__).resolve().parents[1]


def composed(*overrides: str) -> Any:
    """The configuration that the command line would compose; the caller may change it."""
    return pickle.loads(_composed(overrides))  # a hundredth of the time of composing


@cache
def _composed(overrides: tuple[str, ...]) -> bytes:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return pickle.dumps(compose("config", list(overrides)))


@cache
def model_spec(name: str) -> ModelSpec:
    spec: ModelSpec = typed(plain(composed(f"model={name}").model), ModelSpec, "model")
    return spec


@cache
def hardware_profile(name: str) -> Hardware:
    profile: Hardware = typed(plain(composed(f"hardware={name}").hardware), Hardware, "hardware")
    return profile


def run_here(run_dir: Path, *overrides: str, progress: str = "false") -> dict[str, Any]:
    """Runs in this process without W&B and, unless it is asked for, without a report, which takes
    longer than a small run; returns summary.json's content."""
    quiet = ("tracking=none", f"progress={progress}")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", ["figure=null", *overrides, *quiet], return_hydra_config=True)
    choices = dict(config.hydra.runtime.choices)
    del config.hydra
    run(config, Command(run_dir, True, choices, overrides))
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "harness", *arguments]


def run_command(
    *arguments: str, timeout: float = 240, env: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Runs `python -m harness …` from `folder` and captures what it prints. Without `env`, in a
    process forked from one that has its imports, which are most of its time."""
    words = command(*arguments)
    if env is not None:
        return subprocess.run(
            words, cwd=folder, env=os.environ | env, capture_output=True, text=True, check=False,
            timeout=timeout,
        )  # fmt: skip
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["harness.__main__", "harness.running.run", "plots.report"])
    with TemporaryDirectory() as captured:
        said = [Path(captured) / name for name in ("stdout", "stderr")]
        process = forking.Process(
            target=_be_command, args=(arguments, said, folder, dict(os.environ))
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(
            words, process.exitcode, *(path.read_text() for path in said)
        )


def _be_command(
    words: Sequence[str], said: Sequence[Path], folder: Path, environment: Mapping[str, str]
) -> None:
    for number, path in enumerate(said, 1):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["harness", *words]
    main()
