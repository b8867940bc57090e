"""Live instances on a Ray cluster of three nodes, which are all on this host. What passes between
nodes is tested without Ray as well, in `test_systems_on_nodes.py` and `test_over_tcp.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.engine.ray_launcher import ray_launcher
from harness.errors import InstanceLost, RunError, UsageError
from harness.records.journal import JOURNAL
from harness.records.run_folder import FinishedRun
from tests.agents import on_nodes
from tests.contract import test_elastic_kv as contract
from tests.contract import test_over_tcp as over_tcp
from tests.elastic import private
from tests.exactness import answers
from tests.integration import test_examples as examples
from tests.integration import test_systems_on_nodes as systems
from tests.integration.test_torch_engine import request, started

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install '.[cluster]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.filterwarnings("ignore")]

NUM_NODES = 3
ON_RAY = {"cluster": "ray", "device": "cpu"}
NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 * 2**20}
GONE_S = 20.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    made = cluster_utils.Cluster(
        initialize_head=True, head_node_args=NODE | {"include_dashboard": False}
    )
    for _ in range(NUM_NODES - 1):
        made.add_node(**NODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
    made.shutdown()


def raylet_of(pid: int) -> int:
    """The process that stands for the node on which `pid` runs."""
    return next(each.pid for each in psutil.Process(pid).parents() if each.name() == "raylet")


def wait_until_gone(pids: list[int]) -> None:
    until_s = time.monotonic() + GONE_S
    while alive := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < until_s, f"still there: {alive}"
        time.sleep(0.05)


def tokens(folder: Path, num_instances: int, **changes: Any) -> dict[int, list[int]]:
    """What each instance generates for a request of its own."""
    requests = [request(number) for number in range(num_instances)]
    with started(folder, requests, num_instances, **changes) as bench:
        for number, each in enumerate(requests):
            bench.loop.run(bench.serve(each, number))
        if changes:
            assert len({raylet_of(each.pids()[0]) for each in bench.instances}) == num_instances
            for clock in bench.resolved["clocks"]:
                assert abs(clock["offset_s"]) <= clock["error_s"] < 1.0
            assert len({each["address"] for each in bench.resolved["nodes"]}) == 1  # this host
        pids = [each.pids()[0] for each in bench.instances]
    wait_until_gone(pids)
    return answers(*requests)


def test_each_node_has_an_instance_and_tokens_are_those_of_one_host(
    cluster: Any, tmp_path: Path
) -> None:
    assert tokens(tmp_path / "ray", 3, **ON_RAY) == tokens(tmp_path / "local", 3)


def test_a_cluster_with_fewer_nodes_than_the_profile_is_refused(
    cluster: Any, tmp_path: Path
) -> None:
    says = "the hardware profile has 4 nodes, the Ray cluster 3"
    with pytest.raises(UsageError, match=says), started(tmp_path, [], 4, **ON_RAY):
        pass
    assert not ray.is_initialized()


def test_a_node_shows_its_workers_the_gpus_of_the_profile(cluster: Any, tmp_path: Path) -> None:
    """Ray is told of GPUs that there are not: as far as a host without one goes."""
    with ExitStack() as stack:
        launcher = ray_launcher(stack, NUM_NODES, None, 1)
        assert [each["shown_gpus"] for each in launcher.about] == ["0"] * NUM_NODES
    says = "engine.device=cuda, but torch finds no CUDA device here"
    on_gpus = {"cluster": "ray", "device": "cuda"}
    with pytest.raises(RunError, match=says), started(tmp_path, [], 3, **on_gpus):
        pass


def test_a_node_with_another_version_is_named(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = staticmethod(lambda: {"torch": "1.0"})
    monkeypatch.setattr("harness.engine.node_agent.NodeAgent.here", here)
    with pytest.raises(UsageError, match="node 0 of"), started(tmp_path, [], 3, **ON_RAY):
        pass


def test_no_cluster_at_the_address_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    says = "no Ray cluster at RAY_ADDRESS=127.0.0.1:1"
    with pytest.raises(UsageError, match=says), started(tmp_path, [], 3, **ON_RAY):
        pass


@contextmanager
def commanded(
    folder: Path, *words: str, hardware: str = "local"
) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A command on three nodes, and its workers' processes."""
    asked = [
        f"hardware={hardware}", "hardware.num_devices=3", "+engine.cluster=ray",
        "engine.device=cpu", "engine.num_threads=1", "tracking=none", "progress=false",
        "figure=null", "workload.lengths.scale_output=0.3", f"hydra.run.dir={folder / 'run'}",
        *words,
    ]  # fmt: skip
    with (
        (folder / "output").open("w+") as output,
        subprocess.Popen(
            [sys.executable, "-m", "harness", *asked],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # nohup ignores it
        ) as command,
    ):
        logs, pids = folder / "run" / "logs", list[int]()
        until_s = time.monotonic() + 120.0
        while len(pids) < NUM_NODES:
            output.flush()
            assert command.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < until_s, "no workers"
            lines = [log.read_text() for log in logs.glob("worker-*.log")]
            pids = [int(line.split()[1].strip(":")) for line in lines if "setup" in line]
            time.sleep(0.1)
        yield command, pids
    wait_until_gone(pids)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_however_the_harness_ends_no_worker_is_left(
    cluster: Any, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    slow = ("workload.num_requests=5", "workload.scale.rate=0.01")
    with commanded(tmp_path, "+system=vllm", "+workload=azure_code", *slow) as (command, _):
        command.send_signal(number)
        assert command.wait(60) == status, (tmp_path / "output").read_text()


def test_the_main_job_on_nodes_of_a_cluster(cluster: Any, tmp_path: Path) -> None:
    words = ("+system=aegaeon", "+workload=burstgpt", "workload.num_requests=8")
    with commanded(tmp_path, *words) as (command, _):
        assert command.wait(300) == 0, (tmp_path / "output").read_text()
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 8
    assert len(finished.manifest["engine"]["clocks"]) == NUM_NODES
    assert len(finished.manifest["engine"]["nodes"]) == NUM_NODES


@pytest.mark.vllm
def test_vllm_servers_on_nodes_of_a_cluster(cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    words = [
        "+system=vllm", "+workload=burstgpt", "workload.num_requests=8", "engine=vllm",
        "+engine.cluster=ray", "engine.extra_args=[--enforce-eager]", "engine.num_kv_blocks=256",
        "engine.cpu_kv_cache_bytes=268435456", "hardware=local", "hardware.num_devices=2",
        "tracking=none", "progress=false", "figure=null", f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "harness", *words], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 8
    assert len(finished.manifest["engine"]["nodes"]) == 2
    wait_until_gone(
        [each.pid for each in psutil.process_iter() if "vllm.entrypoints" in " ".join(_words(each))]
    )


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.parametrize(
    ("system", "hardware"), [("serverlessllm", "local"), ("blitzscale", "local_cluster_x4")]
)
def test_models_whose_node_dies_are_served_by_the_others(
    cluster: Any, system: str, hardware: str, tmp_path: Path
) -> None:
    words = (f"+system={system}", "+workload=burstgpt", "workload.num_requests=8")
    with commanded(tmp_path, *words, hardware=hardware) as (command, pids):
        journal = tmp_path / "run" / JOURNAL
        while b'"load"' not in journal.read_bytes():  # a model has come
            assert command.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.1)
        os.kill(raylet_of(pids[-1]), signal.SIGKILL)
        assert command.wait(300) == 0, (tmp_path / "output").read_text()
    cluster.add_node(**NODE)  # which the next test has in its place
    finished = FinishedRun.load(tmp_path / "run")
    assert finished.summary["num_completed"] == 8
    assert "lost" in finished.events()["kind"].to_pylist()


STRIKES = (
    "faults.stall=[{instance: 0, after_requests: 2, for_s: 1},"
    "{instance: 1, after_requests: 2, for_s: 1, factor: 3}]",
    "faults.kill=[{instance: 2, after_requests: 4}]",
)
HOST = ("faults.kill=[{host: 2, after_requests: 3}]",)
LINKS = (
    "faults.stall=[{link: 1, after_requests: 2, for_s: 1},"
    "{link: 2, after_requests: 2, for_s: 1, factor: 3}]",
)


@pytest.mark.parametrize(
    ("system", "hardware", "faults", "lost"),
    [
        ("vllm", "local", STRIKES, None),
        ("llumnix", "local_cluster_x4", STRIKES, 0),
        ("serverlessllm", "local", STRIKES, 0),
        ("serverlessllm", "local", HOST, 0),
        ("llumnix", "local_cluster_x4", HOST, 0),
        ("blitzscale", "local_cluster_x4", HOST, 0),
        ("blitzscale", "local_cluster_x4", LINKS, 0),
    ],
)
def test_planned_faults_strike_on_nodes(
    cluster: Any, system: str, hardware: str, faults: tuple[str, ...], lost: int | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    """vLLM's system fails what the dead instance had. Raylets live on, whatever dies."""
    words = (f"+system={system}", "+workload=burstgpt", "workload.num_requests=12", *faults)
    with commanded(tmp_path, *words, hardware=hardware) as (command, pids):
        raylets = {raylet_of(pid) for pid in pids}
        assert command.wait(300) == 0, (tmp_path / "output").read_text()
    assert all(psutil.pid_exists(raylet) for raylet in raylets)
    assert "Traceback" not in (tmp_path / "output").read_text()
    finished = FinishedRun.load(tmp_path / "run")
    found = finished.summary["faults"]
    assert [fault["struck"] for fault in found] == [True] * len(found)
    assert len(found) == {HOST: 1, LINKS: 2, STRIKES: 3}[faults]
    statuses = finished.requests["status"].to_pylist()
    assert set(statuses) <= {"completed", "failed"}
    assert lost is None or statuses.count("failed") == lost


def test_models_take_turns_on_each_node(cluster: Any, tmp_path: Path) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        systems.test_models_take_turns_on_each_node("aegaeon", tmp_path)


def test_weights_come_from_another_node(cluster: Any) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        systems.test_blitzscale_gets_weights_from_another_node(())


def test_parameters_are_dropped_and_kv_goes_to_another_node(cluster: Any) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        systems.test_kunserve_drops_exchanges_and_restores_over_nodes()


@pytest.mark.parametrize(
    "test",
    [
        contract.test_kv_moves_in_mid_decode,
        contract.test_a_target_without_room_refuses_and_nothing_changes,
        contract.test_reserved_pages_are_kept_for_their_owner,
        contract.test_a_request_that_ends_while_its_kv_moves_is_left_out,
    ],
)
def test_kv_moves_as_the_contract_says(cluster: Any, test: Callable[[Any, str], None]) -> None:
    bed: Any = private  # the shared one has more instances than there are nodes
    with on_nodes(ray_launcher, NUM_NODES):
        test(bed, "torch")


@pytest.mark.parametrize("source", ["peers", "hosts"])
def test_a_nodes_nic_is_shared_by_all_who_use_it(cluster: Any, source: str) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        over_tcp.test_a_nodes_nic_is_shared_by_all_who_use_it(source)


def test_memory_is_lent_on_a_node_of_two_devices(cluster: Any) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        systems.test_aqua_pages_to_the_neighbour_on_a_node_of_two_devices()


@pytest.mark.parametrize("path", examples.EXAMPLES, ids=lambda path: path.stem)
def test_an_example(cluster: Any, path: Path) -> None:
    with on_nodes(ray_launcher, NUM_NODES):
        examples.test_an_example_serves_every_request_with_the_right_tokens(path, "torch")


def test_the_memory_of_a_node_that_dies_is_lost_with_its_instance(cluster: Any) -> None:
    cluster.add_node(**NODE)  # which the next test has in its place
    with on_nodes(ray_launcher, NUM_NODES), private("torch", NUM_NODES) as bed:
        lost: list[int] = []
        bed.cluster.on_lost = lambda instance: None
        bed.cluster.on_host_lost = lost.append
        first, *_, last = bed.instances
        commands: Any = bed.cluster._fabric
        doomed = commands.commands[last.name].worker.pid

        async def story() -> None:
            source = bed.cluster.hosts[2].disk(bed.model.name)
            await first.drop(range(4))
            os.kill(raylet_of(doomed), signal.SIGKILL)

            async def read() -> None:
                while True:  # the agent outlives its raylet by up to half a second
                    await first.load(range(4), source)
                    await first.drop(range(4))

            with pytest.raises(InstanceLost):
                await read()
            assert last.lost is not None
            assert await first.load(range(4), bed.instances[1])

        bed.run(story())
        assert lost == [2]
        assert bed.cluster.hosts[2].lost


def test_a_node_that_dies_is_named_and_the_others_go_on(cluster: Any, tmp_path: Path) -> None:
    mine, others = request(0, output=400), request(1, output=30)
    with started(tmp_path, [mine, others], 3, **ON_RAY) as bench:
        doomed = bench.instances[2].pids()[0]

        async def decode() -> None:
            while True:
                await bench.decode(mine, instance=2, max_steps=1)
                await bench.loop.sleep(0.05)

        async def story() -> float:
            await bench.prefill(mine, 2)
            os.kill(raylet_of(doomed), signal.SIGKILL)
            killed_s = bench.loop.now
            with pytest.raises(InstanceLost, match="torch-2"):
                await decode()
            lost_after_s: float = bench.loop.now - killed_s
            with pytest.raises(InstanceLost, match=r"node 2 \("):
                await decode()
            await bench.serve(others, 0)
            return lost_after_s

        assert bench.loop.run(story()) < 5.0
        assert len(answers(others)[others.request_id]) == 30
    wait_until_gone([doomed])
