"""The figures command as a user meets it: a new folder, an end before its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.errors import RunError
from harness.experiments.batch import processes
from tests.integration.test_failures import assert_gone, until
from tests.running import ROOT

# A sweep of long runs, so that the pool is at work whenever it is ended.
SWEEP = """
import sys
from harness.experiments.batch import processes
from time import sleep
if __name__ == "__main__":
    with processes(2) as pool:
        print(sum(pool.map(abs, range(2))), flush=True)
        list(pool.map(sleep, [60, 60, 60]))
"""


def figures(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.experiments.figures", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240
    )


def test_a_figure_is_drawn_into_a_folder_that_was_not_there(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    done = figures("aegaeon_fig01", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / "aegaeon_fig01.csv").is_file()
    published = ROOT / "results/published/aegaeon/aegaeon_fig01.csv"
    assert (out / "aegaeon_fig01.csv").read_bytes() == published.read_bytes()
    assert json.loads((out / "aegaeon_fig01.json").read_text())["runs_sources"]


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = figures("aegaeon_fig01", "--out", str(tmp_path / "file" / "out"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write into ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_pool_ends_with_the_process_that_it_works_for(tmp_path: Path, number: int) -> None:
    (tmp_path / "sweep.py").write_text(SWEEP)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "sweep.py")], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as sweep:  # fmt: skip
        assert sweep.stdout is not None
        assert sweep.stdout.readline() == "1\n"
        processes = psutil.Process(sweep.pid).children(recursive=True)
        until(lambda: len(processes) >= 2, "the pool's start", 10)
        sweep.send_signal(number)
        assert_gone(processes)


def test_a_process_of_the_pool_that_is_killed_is_told() -> None:
    with pytest.raises(RunError, match="was killed"), processes(1) as pool:
        pool.submit(os._exit, 1).result()
