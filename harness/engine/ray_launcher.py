"""Workers on the nodes of a Ray cluster: an agent on each, and TCP from this process to workers.

Ray places agents and notices the death of nodes; no byte of a run goes through it. When this
process dies, Ray ends its actors, and they their workers.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness.engine import tcp
from harness.engine.launcher import NodeLost, Process
from harness.engine.node_agent import NodeAgent, here
from harness.errors import RunError, UsageError, first_line

REACH_S, PLACE_S, ANSWER_S = 5.0, 60.0, 20.0
DEAD_S = 2.0  # an agent that does not answer for so long, when its worker has gone, is gone too
MISSING = "engine.cluster=ray needs Ray, which is not installed: pip install '.[cluster]'"


class RayLauncher:
    """One agent on each of `num_nodes` nodes of the cluster at RAY_ADDRESS, or of the one that runs
    on this host; UsageError where there is none, or too small a one. Ends with `stack`."""

    def __init__(self, stack: ExitStack, num_nodes: int) -> None:
        self._ray = ray = _connected(stack)
        token = secrets.token_bytes(tcp.TOKEN_BYTES)
        hosts = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        if len(hosts) < num_nodes:
            raise UsageError(
                f"the hardware profile has {num_nodes} nodes, the Ray cluster {len(hosts)}: choose "
                "another profile, or start Ray on more nodes"
            )
        self._agents = _agents(ray, stack, num_nodes, token)
        self._token = token
        self._check_versions()

    def start(
        self, name: str, node: int, module: str, files: Sequence[int], log_path: Path,
        num_threads: int, *, has_peers: bool = False,
    ) -> tuple[Process, socket.socket]:  # fmt: skip
        """`log_path`: on a file system that all nodes share."""
        assert not files, "instances that share memory are on one host"
        assert not has_peers, "those that talk to one another, too"
        agent = self._agents[node]
        try:
            ticket, address = self._ask(agent.listen.remote())
            sock = tcp.connect(tuple(address), self._token)
            starting = agent.start.remote(ticket, module, log_path.resolve(), num_threads)
            try:
                pid = self._ask(starting)
            except RunError:
                sock.close()
                raise
        except (RunError, tcp.Refused) as error:
            raise RunError(f"worker {name} cannot be started on node {node}: {error}") from None
        return RemoteProcess(self._ray, agent, node, pid), sock

    def _check_versions(self) -> None:
        ours = here()
        for node, agent in enumerate(self._agents):
            theirs = self._ask(agent.here.remote())
            for name in ours.keys() | theirs.keys():
                if ours.get(name) != theirs.get(name):
                    raise UsageError(
                        f"node {node} of the Ray cluster has {name} {theirs.get(name)}, this host "
                        f"{ours.get(name)}: a run needs the same on all nodes"
                    )

    def _ask(self, asked: Any) -> Any:
        try:
            return self._ray.get(asked, timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            raise RunError(
                f"an agent on the Ray cluster failed, or did not answer in {ANSWER_S:g} s: "
                f"{first_line(error)}"
            ) from None


class RemoteProcess:
    """A worker of an agent, as a subprocess.Popen."""

    def __init__(self, ray: Any, agent: Any, node: int, pid: int) -> None:
        self._ray, self._agent, self._node, self.pid = ray, agent, node, pid
        self._lost = False  # its agent answers no more

    def kill(self) -> None:
        self._agent.kill.remote(self.pid)  # where its node has died, so has it

    def wait(self, timeout: float | None = None) -> int:
        told = f"is lost with node {self._node}, whose agent is gone"
        if self._lost:
            raise NodeLost(told)
        patience_s = ANSWER_S if timeout is None else timeout
        while True:
            waiting = self._agent.wait.remote(self.pid, patience_s / 4)
            try:
                code: int | None = self._ray.get(waiting, timeout=patience_s / 4 + DEAD_S)
            except self._ray.exceptions.RayError:
                self._lost = True
                raise NodeLost(told) from None
            if code is not None:
                return code
            if timeout is not None:
                raise subprocess.TimeoutExpired("worker", timeout)


def _connected(stack: ExitStack) -> Any:
    """Ray, connected until `stack` ends."""
    try:
        import ray
    except ImportError:
        raise UsageError(MISSING) from None
    address = os.environ.get("RAY_ADDRESS", "auto")
    if ":" in address and "://" not in address:  # Ray itself would try for minutes
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except (OSError, ValueError) as error:
            raise UsageError(f"no Ray cluster at RAY_ADDRESS={address}: {error}") from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"no Ray cluster that can be used at {address}: {error}") from None
    finally:
        signal.signal(signal.SIGTERM, before)  # a run has its own way to end
    stack.callback(ray.shutdown)
    return ray


def _agents(ray: Any, stack: ExitStack, num_nodes: int, token: bytes) -> list[Any]:
    """One for each node; all end with `stack`."""
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}] * num_nodes, strategy="STRICT_SPREAD")
    stack.callback(remove_placement_group, group)
    if not group.wait(PLACE_S):
        raise UsageError(
            f"the Ray cluster has no {num_nodes} nodes with a free CPU each: wait until they are "
            "free, or start Ray on more nodes"
        )
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
    agents = []
    for node in range(num_nodes):
        strategy = PlacementGroupSchedulingStrategy(group, node)
        options = {"num_cpus": 1, "max_concurrency": 16, "scheduling_strategy": strategy}
        kind = ray.remote(NodeAgent).options(**options)
        agents.append(kind.remote(addresses[placed[node]], token))
        stack.callback(ray.kill, agents[-1])
    return agents
