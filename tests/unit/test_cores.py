"""The client on a busy machine: its core, the engine's priority, and who else was busy."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pyarrow.parquet as pq
import pytest

from harness.clock import WallLoop
from harness.drivers import supervisor
from harness.engine.host import Launch
from harness.engine.launcher import LocalLauncher
from harness.records.evidence import BUSY
from harness.records.record import Recorder
from harness.running import cores
from harness.running.cores import others_watched, own_core
from tests.running import run_here

SPINS = "while True: pass"
WAITS = "import os; os.nice(5); print(flush=True); input()"


@pytest.mark.live
def test_a_server_is_below_the_clients_priority() -> None:
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
    words = [sys.executable, supervisor.__file__, "1", sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.read()) == os.getpriority(os.PRIO_PROCESS, 0) + 5


@pytest.mark.parametrize(("num_cores", "shared"), [(2, 2), (2, 1)])
def test_the_client_has_a_core_of_its_own_where_there_are_enough(
    num_cores: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core count that this machine has: two are enough if SHARED is one."""
    every = {*sorted(os.sched_getaffinity(0))[:num_cores]}
    if len(every) < num_cores:
        pytest.skip("this machine has one core")
    monkeypatch.setattr(cores, "SHARED", shared)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, every)
    try:
        with subprocess.Popen(
            [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            with own_core():
                ours, theirs = os.sched_getaffinity(0), os.sched_getaffinity(child.pid)
            child.communicate(b"\n")
        assert os.sched_getaffinity(0) == every
    finally:
        os.sched_setaffinity(0, before)
    if num_cores > shared:
        assert (ours, theirs) == ({max(every)}, every - {max(every)})
    else:
        assert ours == theirs == every


def test_a_worker_that_starts_during_a_run_has_the_engines_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that restarts: it is a child of the client, which is bound to a core of its own."""
    if len(every := os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one core")
    monkeypatch.setattr(cores, "SHARED", 1)
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    launch, found = Launch("torch-0", "waits", tmp_path / "log", 1), []
    with ExitStack() as stack:
        launcher = LocalLauncher(stack, tmp_path)
        for during in (nullcontext(), own_core()):
            with during:
                process, sock = launcher.start(launch, 0)
                found.append(os.sched_getaffinity(process.pid))
            sock.close()
            process.kill()
            process.wait()
    assert found == [every, every - {max(every)}]


def test_children_and_threads_that_end_meanwhile_hold_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Child:
        def __init__(self, nice: int | None) -> None:
            self._nice = nice

        def nice(self) -> int:
            if self._nice is None:
                raise psutil.NoSuchProcess(1)
            return self._nice

        def threads(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(id=2**22 + 1), SimpleNamespace(id=living.pid)]

    if len(every := os.sched_getaffinity(0)) == 1:
        pytest.skip("this machine has one core")
    monkeypatch.setattr(cores, "SHARED", 1)
    children = [Child(None), Child(19)]
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: children)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        with own_core():
            assert os.sched_getaffinity(living.pid) == every - {max(every)}
        living.communicate(b"\n")


def test_busy_processes_are_named_but_none_of_the_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An orphan is nobody's child. All are named, since other work may be busier than it."""
    monkeypatch.setattr(cores, "NAMED", 1000)
    recorder, loop = Recorder([]), WallLoop()
    orphaning = (
        "import subprocess as s, sys; "
        f"print(s.Popen([sys.executable, '-c', {SPINS!r}], stdout=s.DEVNULL).pid)"
    )
    with subprocess.Popen([sys.executable, "-c", SPINS]) as own:
        words = [sys.executable, "-c", orphaning]
        made = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        spinning = [psutil.Process(own.pid), psutil.Process(int(made.stdout))]
        try:
            with others_watched(recorder, loop):
                until = [each.cpu_times().user + 0.5 for each in spinning]
                while any(
                    each.cpu_times().user < end for each, end in zip(spinning, until, strict=True)
                ):
                    time.sleep(0.05)
        finally:
            for each in spinning:
                each.kill()
    (event,) = recorder.events
    named = {each["pid"]: each["cores"] for each in event["fields"]["others"]}
    assert event["kind"] == BUSY
    assert named.get(spinning[1].pid, 0) > 0
    assert not {own.pid, os.getpid()} & named.keys()


def test_a_simulated_run_does_not_look_at_this_machine(tmp_path: Path) -> None:
    run_here(
        tmp_path, "+system=vllm", "engine=sim", "+workload=azure_code", "figure=null",
        "workload.num_requests=5",
    )  # fmt: skip
    assert BUSY not in pq.read_table(tmp_path / "events.parquet")["kind"].to_pylist()
