from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import RunError, UsageError
from harness.records.folder_lock import FolderError, FolderInUse, locked
from harness.records.manifest import PROJECT, command_line
from harness.records.run_folder import NOISE_FLOOR, FinishedRun, RunFolder
from harness.records.run_table import cell
from harness.records.sources import Identity
from harness.records.tables import REPORTED, REQUESTS, requests_table
from tests.unit.metrics.service import Service, schedule, steady, write_run


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Makes the operating system refuse larger files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_complete_run_reads_back(tmp_path: Path) -> None:
    service = steady(30)
    run = FinishedRun.load(write_run(tmp_path / "a" / "b", service))
    assert run.summary == service.summary()
    assert run.requests.equals(service.table())
    assert run.manifest["status"] == "complete"
    assert run.config["seed"] == 7


def test_a_number_is_that_of_the_longest_name_that_fits() -> None:
    summary = {"ttft_s": {"p99": 1.0, "p99.9": 2.0}, "models": {"m-1.5": {"goodput_per_s": 3.0}}}
    run = FinishedRun(Path("run"), {}, {}, summary, pa.table({}))
    names = ("ttft_s.p99", "ttft_s.p99.9", "models.m-1.5.goodput_per_s")
    assert [run.number(name) for name in names] == [1.0, 2.0, 3.0]


def test_a_full_disk_is_told_and_leaves_no_half_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin()
    service = steady(200)
    with files_of_at_most(1000):
        with pytest.raises(RunError, match=r"requests\.parquet: .*File too large"):
            folder.write_requests(service.table())
        with pytest.raises(RunError, match=r"schedule\.parquet: .*File too large"):
            folder.write_schedule(schedule(service))
        with pytest.raises(RunError, match=r"config\.yaml: File too large"):
            folder.write_config({"text": "x" * 100_000})
    assert list(folder.path.iterdir()) == []


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin()
    folder.write_manifest({"status": "running"})
    with pytest.raises(ValueError, match="nan"):
        folder.write_manifest({"value": float("nan")})
    with files_of_at_most(100), pytest.raises(RunError):
        folder.write_manifest({"text": "x" * 10_000})
    assert '"running"' in (tmp_path / "manifest.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_new_run_in_an_old_folder_does_not_inherit_its_summary(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(5))
    (path / "notes.txt").write_text("mine")
    for name in (NOISE_FLOOR, "run.png", "engine_metrics.png", "scaling.png"):
        (path / name).write_text("of the old run")
    folder = RunFolder(path)
    folder.begin()
    assert not (path / "summary.json").exists()
    folder.forget_earlier()
    assert [file.name for file in path.iterdir()] == ["notes.txt"]


def test_a_command_that_turns_out_wrong_gives_the_earlier_run_back(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(5))
    (path / "notes.txt").write_text("mine")
    (path / "logs").mkdir()
    (path / "logs" / "worker-0.log").write_text("earlier")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    folder = RunFolder(path)
    folder.begin()
    folder.write_manifest({"status": "running"})
    (path / "logs").mkdir()
    (path / "logs" / "worker-0.log").write_text("later")
    folder.restore()
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    assert not list(path.glob(".*"))


def test_what_a_killed_run_had_set_aside_does_not_outlive_the_next(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(5))
    RunFolder(path).begin()
    folder = RunFolder(path)
    with locked(path, wait=False):
        folder.begin()
        folder.restore()
    assert not path.exists()


def test_an_aborted_run_is_not_a_finished_one(tmp_path: Path) -> None:
    service = Service((0.0, 5))
    service.send(0)
    service.tokens(0, 1.0)
    folder = RunFolder(tmp_path / "run")
    folder.begin()
    folder.write_config({})
    folder.write_requests(requests_table(service.recorder))
    folder.write_manifest({"status": "aborted", "reason": "the engine died"})
    with pytest.raises(UsageError, match=r"summary\.json"):
        FinishedRun.load(folder.path)


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the run folder"):
        RunFolder(tmp_path / "file" / "run").begin()


def test_the_manifest_has_the_command_as_typed_and_no_machines_path() -> None:
    argv = [str(PROJECT / "harness" / "__main__.py"), "+system=vllm"]
    assert command_line(argv) == ["python", "-m", "harness", "+system=vllm"]
    assert (
        command_line([str(PROJECT / "harness/experiments/figures.py")])[-1]
        == "harness.experiments.figures"
    )
    assert command_line(["/elsewhere/pytest", "x"]) == ["/elsewhere/pytest", "x"]


HOLDER = """
import sys, time
from pathlib import Path
from harness.records.folder_lock import locked
with locked(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


def test_a_folder_that_another_process_runs_into_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with held_elsewhere(path) as other:
        with (
            pytest.raises(FolderInUse, match=f"{path} is in use by process {other.pid} on "),
            locked(path, wait=False),
        ):
            pass
        other.kill()  # -9: its claim stays, and is known to be a dead process's
        other.wait()
        with locked(path, wait=False):
            assert json.loads((path / ".lock").read_text())["process"] == os.getpid()
    assert not path.exists()


def test_who_waits_for_a_folder_gets_it_when_its_holder_has_ended(tmp_path: Path) -> None:
    path, got = tmp_path / "run", threading.Event()

    def wait() -> None:
        with locked(path, wait=True):
            got.set()

    waiting = threading.Thread(target=wait)
    with locked(path, wait=False):
        waiting.start()
        assert not got.wait(0.2)
    waiting.join()
    assert got.is_set()
    assert not path.exists()


def test_half_written_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(5))
    (path / ".requests.4711.partial.parquet").write_text("half")
    RunFolder(path).begin()
    assert [file.name for file in path.iterdir()] == [".earlier"]


def test_what_a_run_leaves_that_is_killed_before_its_manifest_is_no_strangers(
    tmp_path: Path,
) -> None:
    identity = Identity("0" * 12, {})
    folder = RunFolder(write_run(tmp_path / "run", steady(5)))
    folder.begin()  # and killed here, with the earlier run set aside
    (folder.path / ".lock").write_text("process 4711 on here")
    (folder.path / ".manifest.4711.partial.json").write_text("{")
    assert folder.held(identity, again=False) is None
    (folder.path / ".mine").write_text("")
    with pytest.raises(FolderError, match="holds files that are not a run's"):
        folder.held(identity, again=False)


@pytest.mark.parametrize("column", REQUESTS.names)
def test_a_table_without_a_column_is_told(tmp_path: Path, column: str) -> None:
    path = write_run(tmp_path / "run", steady(3))
    table = pq.read_table(path / "requests.parquet")
    pq.write_table(table.drop_columns([column]), path / "requests.parquet")
    if column in REPORTED:  # runs of earlier versions
        assert len(FinishedRun.load(path).requests) == 3
        return
    with pytest.raises(UsageError, match=f"requests.parquet is damaged: it has no column {column}"):
        FinishedRun.load(path)


@pytest.mark.parametrize(
    ("key", "odd"),
    [("goodput_per_s", [1.0]), ("slo_attainment", {"token": [[], 1.0]}), ("slo_attainment", []),
     ("e2e_s", {"mean": [True, 1.0]})],
)  # fmt: skip
def test_an_interval_that_is_none_is_told(tmp_path: Path, key: str, odd: object) -> None:
    path = write_run(tmp_path / "run", steady(3))
    summary = json.loads((path / "summary.json").read_text())
    assert FinishedRun.load(path).summary["intervals_95"].keys() >= {key}
    summary["intervals_95"][key] = odd
    (path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UsageError, match="is damaged: "):
        FinishedRun.load(path)


def test_a_latency_without_a_mean_is_shown_so() -> None:
    assert cell({"num_samples": 3}, "mean") == "not computed"
    assert cell({"num_samples": 3}, "p99") == "n<662"
    assert cell({"num_samples": 0}, "mean") == "none"


def test_a_table_that_lacks_requests_is_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", steady(3))
    table = pq.read_table(path / "requests.parquet")
    pq.write_table(table.slice(1), path / "requests.parquet")
    with pytest.raises(UsageError, match="has 2 requests, and"):
        FinishedRun.load(path)
