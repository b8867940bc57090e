"""What breaks in practice: a killed worker, Ctrl-C, a full disk.

Each must end with one clear message, the right exit status, no process left, and no half-written
file; what was recorded until then stays readable.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from harness.records.journal import JOURNAL, entries
from harness.records.recover import main
from tests.running import ROOT, command, run_command

pytestmark = pytest.mark.live

LIVE = (
    "+system=vllm", "+workload=azure_conv", "workload.num_requests=2000", "tracking=none",
    "workload.arrivals.kind=poisson", "workload.arrivals.rate_per_s=4", "figure=null",
)  # fmt: skip
TWO_RANKS = ("engine=torch", "model.tp=2", "hardware=local_x2", "engine.device=cpu")


def start(run_dir: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*arguments, f"hydra.run.dir={run_dir}"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hears_signals,
    )


def hears_signals() -> None:
    """Also where these tests run in a shell's background or under nohup, which ignore them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(condition: Callable[[], object], what: str, limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {limit_s} s"
        time.sleep(0.1)


def children(process: subprocess.Popen[str], needle: str = "") -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if needle in " ".join(child.cmdline())]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process], Path]]:
    """A live run that serves: its first tokens are in the journal. Its processes, its folder."""
    process = start(tmp_path / "run", *LIVE, *TWO_RANKS)
    try:
        until(lambda: written_bytes(tmp_path / "run") > 1000, "the first tokens", 180)
        yield process, children(process), tmp_path / "run"
    finally:
        process.kill()
        process.wait()


def written_bytes(run_dir: Path) -> int:
    """Of the journal, which has a line of each request that was sent and tokens twice a second."""
    journal = run_dir / JOURNAL
    return journal.stat().st_size if journal.exists() else 0


def assert_aborted(run_dir: Path, reason: str) -> None:
    """The folder of a run that broke: readable, with its reason, and without a summary."""
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["status"] == "aborted"
    assert reason in manifest["reason"]
    assert not (run_dir / "summary.json").exists()
    table = pq.read_table(run_dir / "requests.parquet")
    assert len(table) > 0
    assert {"sent", "completed", "failed"} & set(table["status"].to_pylist())
    assert not list(run_dir.rglob("*.partial*"))


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive, [process.cmdline() for process in alive]


def test_a_killed_worker_fails_the_run_and_is_named(live) -> None:
    process, processes, run_dir = live
    one, _ = children(process, "harness.engine.worker")  # its ranks
    one.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "torch-0" in error
    assert "SIGKILL" in error
    assert "Traceback (most recent call last)" not in error
    assert_aborted(run_dir, "torch-0")
    assert_gone(processes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_leave_engines_dead_and_results_readable(
    live, number: signal.Signals
) -> None:
    process, processes, run_dir = live
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in error
    assert_aborted(run_dir, f"KeyboardInterrupt: {number.name}")
    assert_gone(processes)
    assert not (run_dir / JOURNAL).exists()


def test_a_killed_harness_takes_its_workers_along_and_leaves_its_tokens(live) -> None:
    process, processes, run_dir = live
    journal = run_dir / JOURNAL
    until(lambda: any(what == "end" for what, *_ in entries(journal)), "a request's end", 180)
    process.kill()
    assert_gone(processes)
    process.wait()
    assert json.loads((run_dir / "manifest.json").read_text())["status"] == "begun"
    assert main([str(run_dir)]) == 0
    assert_aborted(run_dir, "killed")
    table = pq.read_table(run_dir / "requests.parquet").to_pydict()
    tokens = [len(times_s) for times_s in table["token_times_s"]]
    completed = [i for i, status in enumerate(table["status"]) if status == "completed"]
    assert completed
    assert all(tokens[i] == table["output_tokens"][i] for i in completed)
    assert not journal.exists()
    assert main([str(run_dir)]) == 2  # there is nothing more to recover


def test_a_second_run_into_a_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    slow = (
        "+system=null", "+workload=azure_code", "engine=none", "tracking=none",
        "workload.num_requests=2000", "workload.scale.to_rate_per_s=20", "figure=null",
    )  # fmt: skip
    run_dir = tmp_path / "run"
    first = start(run_dir, *slow)
    try:
        until(lambda: (run_dir / "manifest.json").exists(), "the first run's start")
        for again in ("again=false", "again=true"):
            second = run_command(*slow, again, f"hydra.run.dir={run_dir}")
            assert second.returncode == 2
            assert f"{run_dir} is in use by process {first.pid} on " in second.stderr
        assert main([str(run_dir)]) == 2  # nor is it recovered
        before = written_bytes(run_dir)
        until(lambda: written_bytes(run_dir) > before, "more of the first run")
        first.send_signal(signal.SIGINT)
        _, error = first.communicate(timeout=60)
    finally:
        first.kill()
    assert first.returncode == 130, error
    table = pq.read_table(run_dir / "requests.parquet")
    assert "completed" in table["status"].to_pylist()
    assert not (run_dir / ".lock").exists()


SIMULATED = ("+system=vllm", "engine=sim", "hardware=a100x1", "model=llama2-7b", "tracking=none")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is too small for a run."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(mount)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"mounting a small tmpfs needs root: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_told_and_leaves_no_half_file(full_disk: Path) -> None:
    run_dir = full_disk / "run"
    done = run_command(
        *SIMULATED, "+workload=azure_code", f"hydra.run.dir={run_dir}", env={"TMPDIR": "/tmp"}
    )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert str(full_disk) in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr
    assert not list(full_disk.rglob("*.partial*"))
    assert not (run_dir / "summary.json").exists()
    assert json.loads((run_dir / "manifest.json").read_text())["status"] == "aborted"
    for path in run_dir.glob("*.parquet"):
        pq.read_table(path)
    for path in run_dir.glob("*.json"):
        json.loads(path.read_text())
