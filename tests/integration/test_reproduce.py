"""The reproduce command, killed in the middle of a figure and started again."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.test_failures import assert_gone, until
from tests.running import ROOT

NUM_RUNS = 39  # of aegaeon_fig17 with one seed


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the command needs of this one; runs and results go there."""
    for name in ("conf", "harness", "plots", "systems", "workloads", "results/claims"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "results/published/aegaeon", tmp_path / "results/published/aegaeon")
    return tmp_path


def test_a_command_that_was_killed_makes_no_complete_run_again(checkout: Path) -> None:
    command = [sys.executable, "-m", "harness", "reproduce", "aegaeon_fig17", "--jobs", "2"]

    def made() -> dict[Path, int]:
        found = (checkout / "results/runs").glob("*/summary.json")
        return {path: path.stat().st_mtime_ns for path in found}

    with subprocess.Popen(command, cwd=checkout, stderr=subprocess.DEVNULL) as killed:
        until(lambda: len(made()) >= 3, "three runs", 200)
        processes = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
    assert_gone(processes)
    before = made()
    assert 3 <= len(before) < NUM_RUNS
    again = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=400)
    assert again.returncode == 0, again.stderr
    assert (
        "| figure | aegaeon_fig17 | the same |"
        in (checkout / "results/reproduced/quick/report.md").read_text()
    )
    after = made()
    assert len(after) == NUM_RUNS
    assert before.items() <= after.items()
