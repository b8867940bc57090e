"""Agents of nodes in this process, without Ray: workers on 127.0.0.1, connected over TCP."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from harness.engine import tcp
from harness.engine.agents_launcher import AgentsLauncher
from harness.engine.engine import TorchEngine
from harness.engine.node_agent import NodeAgent
from harness.engine_api import Experiment
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

    def begun(engine: TorchEngine, stack: ExitStack, experiment: Experiment) -> AgentsLauncher:
        return make(stack, experiment.hardware.num_nodes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchEngine, "_launcher", begun)
        patch.setattr(beds, "hardware", lambda: on)
        yield
