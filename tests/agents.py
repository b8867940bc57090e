"""Agents of nodes in this process, without Ray: workers on 127.0.0.1, connected over TCP."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from harness.engine import node_agent, node_files, tcp
from harness.engine.agents_launcher import AgentsLauncher
from harness.engine.engine import TorchEngine
from harness.engine.node_agent import NodeAgent
from harness.engine_api import Experiment
from harness.errors import RunError
from tests import elastic as beds


class Called:
    """An agent that is asked by a call."""

    def __init__(self, stack: ExitStack, token: bytes) -> None:
        self.agent = NodeAgent("127.0.0.1", token)
        stack.enter_context(self.agent.stack)

    def ask(self, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        return getattr(self.agent, method)(*arguments)

    tell = ask


def launcher(stack: ExitStack, num_nodes: int) -> AgentsLauncher:
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    return AgentsLauncher([Called(stack, token) for _ in range(num_nodes)], token)


@contextmanager
def on_nodes(
    make: Callable[[ExitStack, int], AgentsLauncher] = launcher, num_nodes: int = 4
) -> Iterator[None]:
    """Meanwhile live instances start on agents, which `make` makes one of for each node of their
    hardware, and each of a test bed's on a node of its own, of `num_nodes`."""
    on = replace(beds.hardware(num_nodes), devices_per_node=1)

    def begun(
        engine: TorchEngine, stack: ExitStack, experiment: Experiment, gpus: int
    ) -> AgentsLauncher:
        return make(stack, experiment.hardware.num_nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchEngine, "_launcher", begun)
        patch.setattr(beds, "hardware", lambda *num_nodes: on)
        yield


@contextmanager
def dying_as_nodes() -> Iterator[list[tuple[socket.socket, Mapping[str, int]]]]:
    """Meanwhile a node dies with its worker: its agent answers no more, and serves no files. Yields
    the connections over which files are served, each with those."""
    connections: list[tuple[socket.socket, Mapping[str, int]]] = []

    def serve(sock: socket.socket, files: Mapping[str, int], tables: Any) -> None:
        connections.append((sock, files))
        node_files.serve(sock, files, tables)

    def wait(agent: NodeAgent, pid: int, timeout_s: float) -> None:
        agent._processes[pid].wait(timeout_s)
        for sock, files in connections:
            if files is agent.files:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        raise RunError("the agent is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_agent, "serve", serve)
        patch.setattr(NodeAgent, "wait", wait)
        yield connections
