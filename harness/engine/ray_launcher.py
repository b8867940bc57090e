"""The nodes of a Ray cluster, with an agent on each.

Ray places agents and notices the death of nodes; no byte of a run goes through it. When this
process dies, Ray ends its actors, and they their workers.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.configuration.ray_address import VARIABLE, check_address
from harness.engine import tcp
from harness.engine.agent import ANSWER_S, AgentGone
from harness.engine.agents_launcher import AgentsLauncher
from harness.engine.node_agent import NodeAgent
from harness.errors import RunError, UsageError, first_line
from harness.running import device_lock

CLUSTERS = ("local", "ray")
PLACE_S = 60.0
MISSING = "engine.cluster=ray needs Ray, which is not installed: pip install '.[cluster]'"
OF_A_CLUSTER = "hardware.nodes names nodes of Ray: give engine.cluster=ray"


def ray_launcher(
    stack: ExitStack, num_nodes: int, addresses: Sequence[str] | None = None, gpus: int = 0
) -> AgentsLauncher:
    """A launcher with an agent on each of `num_nodes` nodes of the cluster at RAY_ADDRESS, or on
    this host; UsageError where there is none, or too small a one. `addresses`: of these nodes;
    None: those with the most CPUs. `gpus`: of each node, for workers to run on; 0: they run on
    CPUs. Ends with `stack`."""
    ray = _connected(stack)
    token = secrets.token_bytes(tcp.TOKEN_BYTES)
    bundles = bundles_on(ray.nodes(), num_nodes, addresses, gpus)
    agents = _agents(ray, stack, bundles, token)
    check_versions(agents)
    locks = [device_lock.name_of("cpu")]  # the command's host, and this run's alone
    for agent in agents:
        for device in agent.ask("devices", "cuda" if gpus else "cpu"):
            locks.append(agent.ask("hold", device, locks))
        agent.ask("end_with_parent")
    return AgentsLauncher(agents, token)


def bundles_on(
    nodes: Sequence[Mapping[str, Any]], num_nodes: int, addresses: Sequence[str] | None,
    gpus: int = 0,
) -> list[dict[str, float]]:  # fmt: skip
    """What to ask Ray for, of each node: all its CPUs, so that no other run comes beside, and
    `gpus` GPUs."""
    cpus = [
        (node["Resources"]["CPU"], node["NodeManagerAddress"])
        for node in nodes
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        and node["Resources"].get("GPU", 0) >= gpus
    ]  # fmt: skip
    if len(cpus) < num_nodes:
        with_gpus = f" and {gpus} GPUs" if gpus else ""
        raise UsageError(
            f"the hardware profile has {num_nodes} nodes, the Ray cluster {len(cpus)} with a CPU"
            f"{with_gpus}: choose another profile, or start Ray on more nodes"
        )
    gpu = {"GPU": gpus} if gpus else {}
    if addresses is None:
        return [{"CPU": number, **gpu} for number, _ in sorted(cpus, reverse=True)[:num_nodes]]
    of_address = {address: number for number, address in sorted(cpus, reverse=True)}  # the fewest
    for address in addresses:
        if address not in of_address:
            valid = ", ".join(sorted(of_address))
            raise UsageError(f"hardware.nodes names {address}; the Ray cluster has {valid}")
    # Ray gives a node a resource of its address.
    return [{"CPU": of_address[each], **gpu, f"node:{each}": 0.001} for each in addresses]


class RayAgent:
    """A NodeAgent in an actor, on the node at `address`."""

    def __init__(self, ray: Any, actor: Any, address: str) -> None:
        self._ray, self._actor, self.address = ray, actor, address

    def ask(self, method: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments), timeout=timeout_s)
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), tcp.Refused | UsageError):
                raise cause from None
            first, last = first_line(error), str(error).strip().rpartition("\n")[2]
            ended = isinstance(error, self._ray.exceptions.ActorDiedError)
            raise (AgentGone if ended else RunError)(  # Ray says last what was raised on the node
                f"the agent on {self.address} failed, or did not answer in {timeout_s:g} s: "
                f"{first if last in first else f'{first} {last}'}"
            ) from None

    def tell(self, method: str, *arguments: Any) -> None:
        getattr(self._actor, method).remote(*arguments)


def check_versions(agents: Sequence[RayAgent]) -> None:
    """UsageError where a node has other ones than this host, or cannot run the harness."""
    ours = NodeAgent.here()
    for node, agent in enumerate(agents):
        try:
            theirs = agent.ask("here", timeout_s=PLACE_S)  # its process is yet to start
        except RunError as error:
            told = f"node {node} of the Ray cluster cannot run the harness: {error}"
            raise UsageError(told) from None
        for name in ours.keys() | theirs.keys():
            if ours.get(name) != theirs.get(name):
                raise UsageError(
                    f"node {node} of the Ray cluster has {name} {theirs.get(name)}, this host "
                    f"{ours.get(name)}: a run needs the same on all nodes"
                )


def _connected(stack: ExitStack) -> Any:
    """Ray, connected until `stack` ends."""
    address = os.environ.get(VARIABLE, "auto")
    check_address(address, VARIABLE)
    try:
        import ray
    except ImportError:
        raise UsageError(MISSING) from None
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _silent():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"no Ray cluster that can be used at {address}, or its token is another one: "
            f"{first_line(error)}"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, before)  # a run has its own way to end
    stack.callback(ray.shutdown)
    return ray


@contextmanager
def _silent() -> Iterator[None]:
    """Meanwhile nothing is written to standard error, where Ray repeats what it raises then."""
    with open(os.devnull, "w") as nowhere:
        before = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def _agents(
    ray: Any, stack: ExitStack, bundles: Sequence[Mapping[str, float]], token: bytes
) -> list[RayAgent]:
    """One for each of `bundles`, on nodes of their own; all end with `stack`."""
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group(list(bundles), strategy="STRICT_SPREAD")
    stack.callback(remove_placement_group, group)
    if not group.wait(PLACE_S):
        raise UsageError(
            f"the {len(bundles)} nodes of the Ray cluster have other work, of another run perhaps: "
            "wait until all their CPUs are free, or name free nodes in hardware.nodes"
        )
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
    agents = []
    for node, bundle in enumerate(bundles):
        strategy = PlacementGroupSchedulingStrategy(group, node)
        options = {"num_cpus": 1, "max_concurrency": 16, "scheduling_strategy": strategy}
        if "GPU" in bundle:
            options["num_gpus"] = bundle["GPU"]  # Ray shows it these: CUDA_VISIBLE_DEVICES
        kind = ray.remote(NodeAgent).options(**options)
        address = addresses[placed[node]]
        actor = kind.remote(address, token)
        stack.callback(ray.kill, actor)
        agents.append(RayAgent(ray, actor, address))
    return agents
