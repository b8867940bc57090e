"""What an installed copy needs beside the code is declared as its data, and the command exists."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PATTERNS = SETTINGS["tool"]["setuptools"]["package-data"]["*"]
NEEDED = (
    "conf", "workloads/bundled", "results/published/fidelity", "results/published/calibration",
    "plots/page", "harness/calibrate/templates", "harness/fidelity/templates",
)  # fmt: skip
OF_A_READER = (".png", ".pdf", ".py", ".pyc")


@pytest.mark.parametrize("folder", NEEDED)
def test_every_file_that_runs_read_is_package_data(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    assert files
    left = [
        str(path.relative_to(ROOT))
        for path in files
        if path.suffix not in OF_A_READER and not any(fnmatch(path.name, p) for p in PATTERNS)
    ]
    assert left == []


def test_every_package_is_found() -> None:
    include = SETTINGS["tool"]["setuptools"]["packages"]["find"]["include"]
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert tops <= {pattern.rstrip("*") for pattern in include}


def test_the_console_command_is_the_modules_main() -> None:
    module, _, function = SETTINGS["project"]["scripts"]["elastic-bench"].partition(":")
    assert callable(getattr(import_module(module), function))
