from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.engine import engine
from harness.engine.agent import AgentGone
from harness.engine.config import TorchConfig
from harness.engine.ray_launcher import RayAgent, bundles_on, check_versions, ray_launcher
from harness.errors import RunError, UsageError
from tests.elastic import hardware as cluster_of
from tests.elastic import private
from tests.integration.test_torch_engine import started
from tests.running import composed


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with ExitStack() as stack, pytest.raises(UsageError, match=r"pip install '\.\[cluster\]'"):
        ray_launcher(stack, 3)


def test_an_error_of_rays_own_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its AuthenticationError, where the token is another one."""

    class RayError(Exception):
        pass

    def init(**how: Any) -> None:
        raise RayError("wrong authentication token\nand more")

    fake = SimpleNamespace(init=init, exceptions=SimpleNamespace(RayError=RayError))
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    says = "no Ray cluster that can be used at auto, or its token is another one: wrong auth"
    with ExitStack() as stack, pytest.raises(UsageError, match=says) as told:
        ray_launcher(stack, 3)
    assert "and more" not in str(told.value)


def test_a_node_that_cannot_run_the_harness_is_named() -> None:
    """As one without the checkout, or without a package."""

    class RayError(Exception):
        pass

    def get(asked: object, timeout: float) -> None:
        raise RayError("The actor died\n  its stack\nModuleNotFoundError: No module")

    exceptions = SimpleNamespace(RayError=RayError, ActorDiedError=KeyError)
    ray = SimpleNamespace(get=get, exceptions=exceptions)
    actor = SimpleNamespace(here=SimpleNamespace(remote=object))
    says = r"node 0 of .* cannot run .*10\.0\.0\.7 failed.*: The actor died ModuleNotFoundError: "
    with pytest.raises(UsageError, match=says):
        check_versions([RayAgent(ray, actor, "10.0.0.7")])


@pytest.mark.parametrize("died", [True, False])
def test_an_agent_that_has_ended_is_told_from_one_that_does_not_answer(died: bool) -> None:
    class RayError(Exception):
        pass

    class ActorDiedError(RayError):
        pass

    def get(asked: object, timeout: float) -> None:
        raise (ActorDiedError if died else RayError)("no answer")

    exceptions = SimpleNamespace(RayError=RayError, ActorDiedError=ActorDiedError)
    actor = SimpleNamespace(about=SimpleNamespace(remote=object))
    agent = RayAgent(SimpleNamespace(get=get, exceptions=exceptions), actor, "10.0.0.7")
    with pytest.raises(RunError, match=r"10\.0\.0\.7 failed") as told:
        agent.ask("about")
    assert isinstance(told.value, AgentGone) == died


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["+engine.cluster=slurm"], "engine.cluster=slurm"),
        (["+engine.cluster=ray"], "engine.device=auto; valid: cpu, cuda"),
        (["+engine.cluster=ray", "engine.device=cpu"], "needs engine.num_threads"),
    ],
)
def test_what_a_cluster_cannot_have_is_refused(words: list[str], says: str) -> None:
    values = plain(composed("engine=torch", *words).engine)
    del values["_target_"]
    with pytest.raises(UsageError, match=says):
        typed(values, TorchConfig, "engine")


def test_cores_of_this_host_do_not_bound_the_threads_on_others() -> None:
    def threads(*words: str) -> int | None:
        values = plain(composed("engine=torch", "engine.num_threads=4096", *words).engine)
        del values["_target_"]
        return typed(values, TorchConfig, "engine").num_threads

    assert threads("+engine.cluster=ray", "engine.device=cpu") == 4096
    with pytest.raises(UsageError, match="num_threads=4096 must be at most"):
        threads()


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 2), (8, 7)])
def test_threads_leave_the_client_its_core(
    cores: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    values = plain(composed("engine=torch", f"engine.num_threads={most}").engine)
    del values["_target_"]
    assert typed(values, TorchConfig, "engine").num_threads == most
    with pytest.raises(UsageError, match=f"must be at most {most}, "):
        typed(values | {"num_threads": most + 1}, TorchConfig, "engine")


def node(address: str, cpus: float, *, gpus: int = 0, alive: bool = True) -> dict[str, Any]:
    resources = ({"CPU": cpus} if cpus else {}) | ({"GPU": gpus} if gpus else {})
    return {"NodeManagerAddress": address, "Resources": resources, "Alive": alive}


def test_a_run_takes_all_cpus_of_its_nodes() -> None:
    nodes = [node("a", 4), node("head", 0), node("b", 8), node("gone", 64, alive=False)]
    assert bundles_on(nodes, 2, None) == [{"CPU": 8}, {"CPU": 4}]
    assert bundles_on(nodes, 1, None) == [{"CPU": 8}]
    with pytest.raises(UsageError, match="profile has 3 nodes, the Ray cluster 2 with a CPU"):
        bundles_on(nodes, 3, None)


def test_a_run_on_gpus_takes_nodes_that_have_as_many_as_the_profile() -> None:
    nodes = [node("a", 4, gpus=2), node("b", 8), node("c", 2, gpus=4)]
    assert bundles_on(nodes, 2, None, 2) == [{"CPU": 4, "GPU": 2}, {"CPU": 2, "GPU": 2}]
    assert bundles_on(nodes, 1, ["c"], 4) == [{"CPU": 2, "GPU": 4, "node:c": 0.001}]
    with pytest.raises(UsageError, match="the Ray cluster 1 with a CPU and 4 GPUs"):
        bundles_on(nodes, 2, None, 4)
    with pytest.raises(UsageError, match=r"hardware\.nodes names b; the Ray cluster has a, c"):
        bundles_on(nodes, 2, ["a", "b"], 2)


def test_a_profile_names_its_nodes_in_order() -> None:
    nodes = [node("a", 4), node("b", 8)]
    assert bundles_on(nodes, 1, ["a"]) == [{"CPU": 4, "node:a": 0.001}]
    assert [each["CPU"] for each in bundles_on(nodes, 2, ["a", "b"])] == [4, 8]
    with pytest.raises(UsageError, match=r"hardware\.nodes names c; the Ray cluster has a, b"):
        bundles_on(nodes, 2, ["a", "c"])
    hardware = plain(composed("+hardware.nodes=[a,b]").hardware)
    with pytest.raises(UsageError, match="nodes names 2 nodes; valid: 1"):
        typed(hardware, Hardware, "hardware")
    two = hardware | {"num_devices": 2 * hardware["devices_per_node"]}
    assert typed(two, Hardware, "hardware").nodes == ["a", "b"]
    with pytest.raises(UsageError, match=r"nodes=\[a, a\] names a node twice"):
        typed(two | {"nodes": ["a", "a"]}, Hardware, "hardware")


def test_a_simulation_has_no_nodes_of_a_cluster() -> None:
    with (
        pytest.raises(UsageError, match=r"hardware\.nodes names nodes of Ray, and engine"),
        private("sim", 1, on=replace(cluster_of(1), nodes=["a"])),
    ):
        pass


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 2), ("cpu", 0)])
def test_gpus_of_nodes_are_asked_of_ray_and_not_of_this_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, gpus: int
) -> None:
    looked: list[bool] = []

    def asked(stack: ExitStack, num_nodes: int, addresses: None, gpus: int) -> None:
        raise UsageError(f"{num_nodes} nodes with {gpus} GPUs")

    monkeypatch.setattr(engine, "ray_launcher", asked)
    monkeypatch.setattr(engine, "require_gpu", lambda *what, on_cpu: looked.append(on_cpu))
    changes: dict[str, Any] = {"cluster": "ray", "device": device}
    with (
        pytest.raises(UsageError, match=f"2 nodes with {gpus} GPUs"),
        started(tmp_path, [], 2, tp=2, **changes),
    ):
        pass
    assert looked == ([True] if device == "cpu" else [])
