"""Workers on nodes that have an agent each, which are connected over TCP.

What an agent is asked for is `NodeAgent`'s; how it is asked is another's (`harness.engine.agent`).
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.clock import Loop
from harness.engine import tcp
from harness.engine.agent import DEAD_S, Agent
from harness.engine.far_victims import FarNode, FarProcesses
from harness.engine.host import Launch
from harness.engine.launcher import NodeLost, Process
from harness.errors import RunError, UsageError

PART_S = 1.0  # of waiting, in one question


class AgentsLauncher:
    """`agents`: one on each node, which know `token`. `about`: what manifests say of the nodes."""

    one_host = False

    def __init__(self, agents: Sequence[Agent], token: bytes) -> None:
        self.agents, self.token = agents, token
        self.hosts = [FarNode(number, agent) for number, agent in enumerate(agents)]
        self.about: list[dict[str, Any]] = [agent.ask("about") for agent in agents]
        # Names of each node's files, of those together that were opened so.
        self._files: list[list[list[str]]] = [[] for _ in agents]
        self._nodes: dict[str, int] = {}  # of workers

    def open(self, of_nodes: Sequence[Mapping[str, int | None]]) -> Mapping[str, int]:
        for agent, files, sizes in zip(self.agents, self._files, of_nodes, strict=True):
            agent.ask("open", dict(sizes))
            files.append(list(sizes))
        return {}

    def start(self, launch: Launch, node: int) -> tuple[Process, socket.socket]:
        """The worker's log is on a file system that all nodes share."""
        runs, agent = launch.name in self._nodes, self.agents[node]
        self._nodes[launch.name] = node
        launch = launch._replace(log_path=launch.log_path.resolve())
        try:
            ticket, address = agent.ask("listen")
            sock = tcp.connect(tuple(address), self.token)
            try:
                far = [
                    (other.ask("serve"), names)
                    for other, files in zip(self.agents, self._files, strict=True)
                    for names in files
                    if other is not agent and names
                ]
                pid = agent.ask("begin", ticket, launch, far)
            except RunError:
                sock.close()
                raise
        except (RunError, tcp.Refused) as error:
            told = f"worker {launch.name} cannot be started on {self.named(node)}: {error}"
            # Ports and tokens are the user's to mend, unless they were right when the run began.
            broke = isinstance(error, RunError) or runs
            raise (RunError if broke else UsageError)(told) from None
        return FarProcess(agent, self.named(node), pid), sock

    def share_bytes(self, device: str, nodes: Sequence[int]) -> int | None:
        counts = Counter(nodes).items()
        shares: list[int | None] = [
            self.agents[node].ask("share_bytes", device, count) for node, count in counts
        ]
        of_gpus = [share for share in shares if share is not None]
        return min(of_gpus) if len(of_gpus) == len(shares) else None

    def victim(
        self, node: int, name: str, loop: Loop, find: Callable[[], Iterable[int]],
        expect: Callable[[], None],
    ) -> FarProcesses:  # fmt: skip
        return FarProcesses(name, loop, self.agents[node], find, expect)

    def stall_links(self, node: int, table: str, links: Sequence[int], for_s: float) -> float:
        return float(self.agents[node].ask("stall_links", table, links, for_s))

    def line(self, node: int) -> socket.socket:
        """A connection to the agent that ends with it, for whoever waits for its end."""
        _, address = self.agents[node].ask("listen")  # the agent keeps its end
        return tcp.connect(tuple(address), self.token)

    def named(self, node: int) -> str:
        return f"node {node} ({self.about[node]['address']})"

    def connect(self, one: str, other: str) -> None:
        ours, theirs = (self.agents[self._nodes[name]] for name in (one, other))
        if ours is theirs:
            ours.ask("pair", one, other)
            return
        try:
            ticket, address = ours.ask("listen")
            theirs.ask("join", other, one, address)
            ours.ask("hand", ticket, one, other)
        except tcp.Refused as error:
            raise UsageError(f"{one} and {other} cannot be connected: {error}") from None


class FarProcess:
    """A worker of an agent, as a subprocess.Popen. `node`: as it is named."""

    def __init__(self, agent: Agent, node: str, pid: int) -> None:
        self._agent, self._node, self.pid = agent, node, pid
        self._lost = False  # its agent answers no more
        self._heard_s = time.monotonic()  # when the agent answered last
        self._code: int | None = None  # once it has ended

    def kill(self) -> None:
        self._agent.tell("kill", self.pid)  # where its node has died, so has it

    def _is_gone(self, silent_s: float) -> bool:
        """Whether the agent is, which has not answered: this is asked when its worker has gone."""
        return True

    def wait(self, timeout: float | None = None) -> int:
        told = f"is lost with {self._node}, whose agent is gone"
        if self._lost:
            raise NodeLost(told)
        if self._code is not None:
            return self._code
        start_s = time.monotonic()
        part_s = PART_S if timeout is None else min(PART_S, timeout / 4)
        while True:
            try:
                self._code = self._agent.ask("wait", self.pid, part_s, timeout_s=part_s + DEAD_S)
            except RunError:
                if self._is_gone(time.monotonic() - self._heard_s):
                    self._lost = True
                    raise NodeLost(told) from None
            else:
                self._heard_s = time.monotonic()
            if self._code is not None:
                return self._code
            if timeout is not None and time.monotonic() - start_s >= timeout:
                raise subprocess.TimeoutExpired("worker", timeout)
