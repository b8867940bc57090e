"""Servers on nodes that have an agent: reached through relays, by who knows the run's token."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from harness.clock import Event, WallLoop
from harness.drivers import server as server_module
from harness.drivers.fleet import fail, running, watch
from harness.drivers.server import Plan, Server, fetch
from harness.drivers.vllm import Mortal, VllmEngine
from harness.engine import relay, tcp
from harness.engine.site import Node
from harness.errors import RunError, UsageError
from tests.agents import launcher
from tests.integration.test_vllm_engine import experiment
from tests.unit.drivers.test_fleet import TREE_SIZE, gone, plan, until
from tests.unit.drivers.test_vllm_values import FIELDS

pytestmark = pytest.mark.live


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Plan]]:
    """A server on each of two nodes."""
    monkeypatch.setattr(server_module, "GRACE_S", 0.5)
    with ExitStack() as stack:
        agents = launcher(stack, 2)
        yield [
            replace(plan(tmp_path, "serve", f"fake-{node}"), site=Node(stack, agents, node))
            for node in range(2)
        ]


def test_servers_on_nodes_are_up_inside_and_gone_outside(plans: list[Plan]) -> None:
    with running(plans, 30, print) as members:
        assert [member.name for member in members] == ["fake-0", "fake-1"]
        assert members[0].url != members[1].url
        processes = [each for member in members for each in below(member)]
    assert gone(processes)
    with pytest.raises(OSError, match="closed"):  # the relay stays, what it reached is gone
        fetch(f"{members[0].url}/health", 1.0)


def below(member: Server) -> list[psutil.Process]:
    """The supervisor and all that it has started; its parent, a shell, is not among them."""
    shell = psutil.Process(member._supervisor.pid)
    assert until(lambda: len(shell.children(recursive=True)) == 1 + TREE_SIZE)
    return shell.children(recursive=True)


def test_a_server_is_gone_though_ray_kills_the_children_of_its_agent(plans: list[Plan]) -> None:
    with running(plans[:1], 30, print) as members:
        processes, site = below(members[0]), cast("Any", plans[0].site)
        psutil.Process(members[0]._supervisor.pid).kill()
        for each in site._agent.agent._processes.values():
            each.stdin.close()  # as where the agent ends
        assert gone(processes)


def test_a_death_on_a_node_names_the_server(plans: list[Plan]) -> None:
    loop = WallLoop()

    async def main() -> None:
        os.kill(below(members[1])[1].pid, signal.SIGKILL)  # the server
        await loop.wait(Event(loop), until=30)

    with running(plans, 30, print) as members:
        watch(members, loop, fail)
        with pytest.raises(RunError, match=r"fake-1 ended \(killed by SIGKILL\)"):
            loop.run(main())


def test_faults_strike_a_servers_processes_and_not_its_supervisor(plans: list[Plan]) -> None:
    loop = WallLoop()
    with running(plans[:1], 30, print) as members:
        supervisor, *processes = below(members[0])
        victim = members[0].victim(loop, lambda: None)

        async def main() -> Any:
            stall = loop.spawn(victim.stall(0.4), name="stall")
            await loop.sleep(0.2)
            stopped = [each for each in processes if each.status() == psutil.STATUS_STOPPED]
            assert stopped == processes
            assert supervisor.status() != psutil.STATUS_STOPPED
            await loop.wait(stall.finished)
            return stall.result

        assert loop.run(main()) is True
        assert victim.alive
        victim.kill()
        assert gone(processes)
        assert not victim.alive
        assert until(lambda: not members[0].running)


def test_a_node_that_dies_with_its_server_is_named(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*asked: object, **limits: float) -> None:
        raise RunError("the agent is gone")

    with running(plans[:1], 30, print) as members:
        with monkeypatch.context() as patch:
            called = cast("Any", plans[0].site)._agent
            patch.setattr(called, "ask", lost)
            for each in called.agent._awaited.values():
                each.result().close()
            assert not members[0].running
            assert "is lost with node 0 (127.0.0.1)" in members[0].obituary()
        cast("Any", members[0]._supervisor)._lost = False


def test_a_server_that_may_die_leaves_why_in_the_runs_events(
    plans: list[Plan], tmp_path: Path
) -> None:
    asked = experiment(tmp_path, [], 1)
    endpoint: Any = SimpleNamespace(name="fake-0", lost=False)
    mortal = Mortal([endpoint], asked)
    mortal.names.add("fake-0")
    with running(plans[:1], 30, print) as members:
        os.kill(below(members[0])[1].pid, signal.SIGKILL)
        mortal.died(members[0])
    (event,) = asked.recorder.events
    assert event["fields"]["why"].startswith("fake-0 ended; its log is ")
    assert endpoint.lost


def echo() -> int:
    """A port on which what comes goes back, until its end."""
    server = socket.create_server((relay.LOOPBACK, 0))

    def back() -> None:
        while True:
            sock, _ = server.accept()
            with sock:
                while part := sock.recv(1 << 16):
                    sock.sendall(part)

    threading.Thread(target=back, daemon=True).start()
    return int(server.getsockname()[1])


def test_a_relay_carries_bytes_both_ways_for_who_knows_the_token() -> None:
    token, content = secrets.token_bytes(tcp.TOKEN_BYTES), secrets.token_bytes(1 << 20)
    address = relay.node_end(relay.LOOPBACK, echo(), token)
    with ExitStack() as stack:
        port = relay.harness_end(stack, address, token)
        sock = stack.enter_context(socket.create_connection((relay.LOOPBACK, port), 10))
        sender = threading.Thread(target=sock.sendall, args=(content,))
        sender.start()
        found = bytearray()
        while len(found) < len(content):
            found += sock.recv(1 << 16)
        sender.join()
    assert bytes(found) == content


def test_a_relay_goes_on_after_a_connection_that_it_cannot_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    address = relay.node_end(relay.LOOPBACK, echo(), token)
    errors = iter([RuntimeError("can't start new thread")])

    def thread(**how: Any) -> threading.Thread:
        for error in errors:
            raise error
        return threading.Thread(**how)

    monkeypatch.setattr(relay, "Thread", thread)
    with socket.create_connection(address, 10) as sock:
        assert sock.recv(1) == b""
    with tcp.connect(address, token) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    assert "can't start new thread" in capsys.readouterr().err


def test_a_relay_that_ends_at_once_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "false")
    says = pytest.raises(RunError, match=r"relay to 127.0.0.1:1 ended before it had a port")
    with says, ExitStack() as stack:
        relay.harness_end(stack, (relay.LOOPBACK, 1), bytes(tcp.TOKEN_BYTES))


@pytest.mark.parametrize("through", ["a relay with another token", "no relay"])
def test_a_server_is_closed_to_who_does_not_know_the_token(through: str) -> None:
    token, other = (secrets.token_bytes(tcp.TOKEN_BYTES) for _ in range(2))
    address = relay.node_end(relay.LOOPBACK, echo(), token)
    with ExitStack() as stack:
        if through != "no relay":
            address = relay.LOOPBACK, relay.harness_end(stack, address, other)
        sock = stack.enter_context(socket.create_connection(address, 10))
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(tcp.NONCE_BYTES + 32))
        answer = b""
        with suppress(ConnectionResetError):
            while part := sock.recv(1 << 16):
                answer += part
    assert b"GET" not in answer


def test_what_is_not_one_server_a_node_is_refused(tmp_path: Path) -> None:
    asked = experiment(tmp_path, [], 2)
    wide = replace(asked, hardware=replace(asked.hardware, devices_per_node=2))
    narrow = asked.placements[0]
    mixed = replace(asked, placements=[narrow, replace(narrow, devices=range(1, 3))])
    on_ray = VllmEngine(VllmEngine.Config(**FIELDS, cluster="ray"))
    for each in (wide, mixed):
        with pytest.raises(UsageError, match="one server on each node"), on_ray.start(each):
            pass
    with pytest.raises(UsageError, match=r"engine.cluster=slurm.*local"):
        VllmEngine(VllmEngine.Config(**FIELDS, cluster="slurm"))
