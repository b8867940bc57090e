"""Faults on purpose that a node's agent does: whether each struck is seen on the node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.clock import WallLoop
from harness.engine.agent import AgentGone, answer_of
from harness.engine.far_victims import FarNode, FarProcesses
from harness.errors import RunError, UsageError
from harness.records.record import Recorder
from harness.running.faults import Kill, Strike
from tests.agents import Called

SPINS = "import time\nprint(1, flush=True)\nwhile time.monotonic(): pass"


@pytest.fixture
def called() -> Iterator[Called]:
    with ExitStack() as stack:
        yield Called(stack, b"")


@pytest.fixture
def worker(called: Called) -> Iterator[psutil.Process]:
    """A process of the agent that does nothing but use processor time."""
    process = subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    called.agent._processes[process.pid] = process
    yield psutil.Process(process.pid)
    process.kill()
    process.communicate()


def victim(called: Called, worker: psutil.Process) -> tuple[FarProcesses, WallLoop]:
    loop = WallLoop()
    return FarProcesses("one", loop, called, lambda: [worker.pid], lambda: None), loop


def test_a_stalled_process_is_seen_to_stop_and_goes_on(
    called: Called, worker: psutil.Process
) -> None:
    one, loop = victim(called, worker)
    seen: list[str] = []

    async def main() -> Any:
        stall = loop.spawn(one.stall(0.3), name="stall")
        await loop.sleep(0.15)
        seen.append(worker.status())
        await loop.wait(stall.finished)
        return stall.result

    assert loop.run(main()) is True
    assert seen == [psutil.STATUS_STOPPED]
    assert worker.status() != psutil.STATUS_STOPPED


@pytest.mark.parametrize("by", ["its release", "another"])
def test_a_process_that_goes_on_in_the_midst_of_its_stall_was_not_stalled(
    called: Called, worker: psutil.Process, by: str
) -> None:
    """Its run releases it where it ends meanwhile."""
    one, loop = victim(called, worker)

    async def main() -> Any:
        stall = loop.spawn(one.stall(0.4), name="stall")
        await loop.sleep(0.2)
        if by == "another":
            worker.resume()
        else:
            one.release()
            assert worker.status() != psutil.STATUS_STOPPED
        await loop.wait(stall.finished)
        return stall.result

    assert loop.run(main()) is False


def test_a_killed_process_is_dead_and_cannot_be_stalled(
    called: Called, worker: psutil.Process
) -> None:
    one, loop = victim(called, worker)
    assert one.alive
    one.kill()
    called.agent._processes[worker.pid].wait(10)
    assert not one.alive
    assert loop.run(one.stall(0.1)) is False


class Silent:
    """An agent that has ended, or only does not answer in time."""

    def __init__(self, error: RunError) -> None:
        self._error = error

    def ask(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        raise self._error

    def tell(self, method: str, *arguments: Any) -> None:
        pass


def test_what_is_not_known_is_not_dead_and_has_not_stalled() -> None:
    loop = WallLoop()
    gone, slow = Silent(AgentGone("it has ended")), Silent(RunError("no answer"))
    for agent, alive in ((gone, False), (slow, True)):
        one = FarProcesses("one", loop, agent, lambda: [1], lambda: None)
        assert one.alive == FarNode(0, agent).alive == alive
        one.kill()
        assert one.alive == alive
        assert loop.run(one.stall(0.1)) is False


class Slow(Silent):
    """Answers once the loop has gone on."""

    def __init__(self) -> None:
        self.went_on = threading.Event()
        self.told: list[str] = []

    def ask(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> bool:
        return self.went_on.wait(5.0)

    def tell(self, method: str, *arguments: Any) -> None:
        self.told.append(method)


@pytest.mark.parametrize("of", ["processes", "node"])
def test_the_run_goes_on_while_an_agent_is_asked_before_a_strike(of: str) -> None:
    loop, agent, recorder = WallLoop(), Slow(), Recorder([])
    one = FarProcesses("one", loop, agent, lambda: [1], lambda: None)
    victim = one if of == "processes" else FarNode(1, agent)
    strike = Strike(Kill(instance=0, at_s=0.0), victim, loop, recorder)

    async def main() -> None:
        task = loop.spawn(strike.run(), name="strike")
        await loop.sleep(0.05)
        agent.went_on.set()
        await loop.wait(task.finished)

    loop.run(main())
    assert agent.told == ["strike" if of == "processes" else "die"]
    assert not recorder.events, "it was found alive"


def test_what_a_question_raises_is_raised_where_its_answer_is_waited_for() -> None:
    def question() -> int:
        raise KeyError("no such worker")

    loop = WallLoop()
    with pytest.raises(KeyError, match="no such worker"):
        loop.run(answer_of(loop, question))


def test_a_nodes_servers_die_before_its_agent(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their supervisor would end them in order."""
    struck: list[int] = []
    kill = os.kill

    def noted(pid: int, number: int) -> None:
        struck.append(pid)
        if pid != os.getpid():
            kill(pid, number)

    agent = called.agent
    program = "import subprocess, sys; subprocess.Popen(['sleep', '60']); sys.stdin.read()"
    pid = agent.supervise([sys.executable, "-c", program], {}, tmp_path / "log")
    try:
        for _ in range(1000):
            if below := [*agent._victim(WallLoop(), [pid])._find()]:
                break
            time.sleep(0.01)
        monkeypatch.setattr("os.kill", noted)
        agent.die()
        assert struck == [*below, os.getpid()]
    finally:
        monkeypatch.undo()
        agent.kill(pid)
        agent.end(pid)
        agent.wait(pid, 10.0)


def test_a_node_dies_with_its_agent(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Ray it does so: `test_ray_cluster`."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda *how: killed.append(how))
    node = FarNode(1, called)
    assert node.name == "host 1"
    assert node.alive
    node.kill()
    assert killed == [(os.getpid(), signal.SIGKILL)]
    with pytest.raises(UsageError, match="host 1 cannot stall"):
        WallLoop().run(node.stall(1.0))
