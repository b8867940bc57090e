"""Servers come up, are missed when they die, and leave no process behind: whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.clock import Event, WallLoop
from harness.drivers import server as server_module
from harness.drivers.fleet import fail, running, watch
from harness.drivers.server import Plan, Server
from harness.errors import RunError

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[3]
FAKE = Path(__file__).with_name("fake_server.py")
TREE_SIZE = 3  # the fake server, its child, its grandchild


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "GRACE_S", 0.5)


def plan(tmp_path: Path, behaviour: str, name: str = "fake-0") -> Plan:
    marker = str(tmp_path / f"{name}.marker")
    return Plan(
        name=name,
        command=lambda port: [sys.executable, str(FAKE), str(port), behaviour, marker],
        env={},
        log_path=tmp_path / f"{name}.log",
    )


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def tree(server: Server) -> list[psutil.Process]:
    """The server's processes, all of them up."""
    supervisor = psutil.Process(server._supervisor.pid)
    assert until(lambda: len(supervisor.children(recursive=True)) == TREE_SIZE)
    return [supervisor, *supervisor.children(recursive=True)]


def gone(processes: list[psutil.Process]) -> bool:
    return until(lambda: not any(process.is_running() for process in processes))


def test_a_fleet_is_up_inside_and_gone_outside(tmp_path: Path) -> None:
    said: list[str] = []
    plans = [plan(tmp_path, "serve", f"fake-{i}") for i in range(2)]
    with running(plans, 30, said.append) as members:
        assert members[0].url != members[1].url
        processes = tree(members[0]) + tree(members[1])
        assert len(processes) == 2 * (1 + TREE_SIZE)
    assert not any(process.is_running() for process in processes)
    assert [line.split(" after")[0] for line in sorted(said)] == [
        "fake-0 is ready",
        "fake-1 is ready",
    ]


def test_a_fleet_is_gone_after_an_exception(tmp_path: Path) -> None:
    processes: list[psutil.Process] = []

    def use() -> None:
        with running([plan(tmp_path, "serve")], 30, print) as members:
            processes.extend(tree(members[0]))
            raise ZeroDivisionError("as planned")

    with pytest.raises(ZeroDivisionError, match="as planned"):
        use()
    assert processes
    assert not any(process.is_running() for process in processes)


def test_a_server_that_dies_in_starting_is_told_with_its_first_error(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught, running([plan(tmp_path, "crash")], 30, print):
        pass
    said = str(caught.value)
    assert "while starting, fake-0 ended (exit code 1)" in said
    assert "first error: ValueError: no memory" in said
    assert "RuntimeError: Engine failed, see above" in said


def test_a_server_that_never_comes_up_is_told_with_its_last_word(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught, running([plan(tmp_path, "silent")], 3.0, print):
        pass
    assert "fake-0 was not ready in 3 s" in str(caught.value)
    assert "it last said: Loading the model;" in str(caught.value)


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path) -> None:
    with running([plan(tmp_path, "taken")], 30, print) as members:
        assert members[0].running


def test_a_death_in_the_run_ends_the_run_and_names_the_server(tmp_path: Path) -> None:
    loop = WallLoop()

    async def main() -> None:
        os.kill(psutil.Process(members[0]._supervisor.pid).children()[0].pid, signal.SIGKILL)
        await loop.wait(Event(loop), until=30)

    with running([plan(tmp_path, "serve")], 30, print) as members:
        processes = tree(members[0])
        watch(members, loop, fail)
        with pytest.raises(RunError, match=r"fake-0 ended \(killed by SIGKILL\)"):
            loop.run(main())
        assert gone(processes)


def test_a_death_is_told_before_what_the_server_left_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "GRACE_S", 2.0)
    left: list[bool] = []
    loop = WallLoop()

    def told(server: Server) -> None:
        left.append(any(process.is_running() for process in processes))
        died.set()

    with running([plan(tmp_path, "serve")], 30, print) as members:
        processes, died = tree(members[0]), Event(loop)
        watch(members, loop, told)

        async def main() -> bool:
            psutil.Process(members[0]._supervisor.pid).children()[0].kill()
            return await loop.wait(died, until=30)

        assert loop.run(main())
    assert left == [True]


def test_a_planned_end_is_no_death(tmp_path: Path) -> None:
    loop = WallLoop()
    with running([plan(tmp_path, "serve")], 30, print) as members:
        watch(members, loop, fail)

    async def main() -> bool:
        return await loop.wait(Event(loop), until=0.2)

    assert loop.run(main()) is False


HARNESS = """
import sys, time
from pathlib import Path
from harness.drivers import server
server.GRACE_S = 0.5
plan = server.Plan(
    name="fake", command=lambda port: sys.argv[2:], env={}, log_path=Path(sys.argv[1])
)
server = server.Server(plan, 0)
print(server._supervisor.pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    fake = [sys.executable, str(FAKE), "0", "silent"]
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path / "log"), *fake],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with harness:
        assert harness.stdout is not None
        supervisor = psutil.Process(int(harness.stdout.readline()))
        assert until(lambda: len(supervisor.children(recursive=True)) == TREE_SIZE)
        processes = [supervisor, *supervisor.children(recursive=True)]
        harness.kill()
    assert gone(processes)


def test_the_server_ends_even_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    server = Server(plan(tmp_path, "silent"), 0)
    supervisor, *processes = tree(server)
    main, *orphans = processes
    supervisor.kill()
    assert gone([main])
    server.stop()
    for orphan in orphans:  # a real server's main process takes them with it
        orphan.kill()
