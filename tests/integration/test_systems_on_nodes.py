"""Whole systems with their instances on two or three nodes: tokens are those of one host.

A node is an agent in this process; its workers, and what passes between nodes, are as on a Ray
cluster.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.engine.agents_launcher import AgentsLauncher
from harness.errors import RunError, UsageError
from harness.pooled import kv
from tests.agents import Called, dying_as_nodes, on_nodes
from tests.contract import test_pooled_deaths as pooled_deaths
from tests.contract import test_system as contract
from tests.contract.pool_bench import PoolBench
from tests.forked_workers import workers_alive
from tests.integration import test_aqua_live as aqua
from tests.integration import test_blitzscale_live as blitzscale
from tests.integration import test_kunserve_live as kunserve
from tests.integration import test_llumnix_live as llumnix
from tests.integration import test_pooling_systems_live as pooling
from tests.integration.test_torch_engine import started
from tests.integration.test_torch_pool import MODELS, dedicated_tokens

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]


@pytest.fixture(scope="module", autouse=True)
def each_on_a_node() -> Iterator[None]:
    with on_nodes():
        yield


@pytest.mark.parametrize("system", ["aegaeon", "serverlessllm"])
def test_models_take_turns_on_each_node(system: str, tmp_path: Path) -> None:
    """Aegaeon's requests go from the prefill instance to the other node's, with their KV."""
    served = pooling.serve(tmp_path / "run", 2, [f"+system={system}"], per_node=1)
    pooling.assert_all_have_their_tokens(served, dedicated_tokens(tmp_path / "alone", MODELS))
    swaps = {event["instance"] for event in served.events("swap_in")}
    assert swaps == ({"torch-1"} if system == "aegaeon" else set())


@pytest.mark.parametrize("kill", [(), ((1, 1.2),)], ids=["", "though the source's host dies"])
def test_blitzscale_gets_weights_from_another_node(kill: tuple[tuple[int, float], ...]) -> None:
    served = blitzscale.live(blitzscale.LIVE, kill_hosts=kill)
    first = next(event for event in served.events("load") if event["fields"]["layers"])
    assert first["fields"]["source"] == "torch-1"
    assert len(served.events("lost")) == len(kill)


def test_kunserve_drops_exchanges_and_restores_over_nodes() -> None:
    kunserve.test_a_burst_is_served_by_dropping_parameters("live", "tiny-llama")


def test_an_instance_of_two_ranks_is_served_on_each_node() -> None:
    contract.test_a_system_serves_twenty_requests(contract.TWO_RANKS, "torch")


TWO = "hardware=local hardware.num_devices=2 hardware.devices_per_node=1"
TWO_EACH = "hardware.num_devices=4 hardware.devices_per_node=2"


@pytest.mark.parametrize(
    "system",
    [
        "blitzscale_allcache", "blitzscale_colocated", "blitzscale_serverlessllm",
        f"distserve {TWO}", f"flexgen {TWO_EACH}", f"serverlessllm_plus {TWO}",
        f"vllm_cfs {TWO_EACH}",
    ],
)  # fmt: skip
def test_every_other_system_is_served_on_nodes(system: str) -> None:
    contract.test_a_system_serves_twenty_requests(system, "torch")


def test_aqua_pages_to_the_neighbour_on_a_node_of_two_devices() -> None:
    aqua.test_tokens_are_those_of_an_undisturbed_run("paged to the neighbour")


def test_llumnix_migrates_to_another_node() -> None:
    llumnix.test_requests_that_migrate_while_they_decode_keep_their_tokens()


@pytest.mark.parametrize(
    ("system", "victim"), [("aegaeon", 0), ("aegaeon", 3), ("serverlessllm", 1)]
)
def test_others_serve_what_a_dead_node_had(system: str, victim: int) -> None:
    """With the KV of Aegaeon's requests in its memory."""
    hardware = ("hardware.num_devices=4", "hardware.devices_per_node=1")
    with dying_as_nodes():
        served = pooled_deaths.struck(system, "torch", *hardware, kill=(victim,))
    pooled_deaths.assert_all_served(served, "torch")


@pytest.mark.parametrize("dies", [True, False])
def test_kv_that_breaks_off_on_its_way_from_another_node_is_told(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node has died, or only the connection to it is broken, which ends the run."""
    monkeypatch.setattr(kv, "NOTICE_S", 30.0 if dies else 0.5)
    told: list[object] = []
    with dying_as_nodes() as connections:
        bench = PoolBench("torch", ("wide", "narrow"), devices_per_node=1)
        one, other = bench.pool
        one.on_lost, other.on_kv_lost = (lambda leaving: None), told.append
        for victim in bench.victims:
            victim.expect()

        async def story() -> None:
            request = bench.request("narrow", prompt=60)
            await bench.prefill(one, request)
            await bench.loop.wait(one.swap_out(request, lambda: None))
            for sock, _ in connections:
                sock.shutdown(socket.SHUT_RDWR)
            if dies:
                bench.victims[0].kill()
            await bench.swap_in(other, request)
            assert told == [request]
            other.evict(request)

        try:
            if dies:
                bench.run(story)
            else:
                with pytest.raises(RunError, match="from node-0 to torch-1 broke off, and no inst"):
                    bench.loop.run(story())
        finally:
            bench.close()
        assert len(bench.events("kv_lost")) == dies


def test_nothing_is_left_where_the_second_node_has_another_token(tmp_path: Path) -> None:
    def launcher(stack: ExitStack, num_nodes: int) -> AgentsLauncher:
        agents = [Called(stack, bytes([node])) for node in range(num_nodes)]
        return AgentsLauncher(agents, bytes([0]))

    with (
        on_nodes(launcher, 2),
        pytest.raises(UsageError, match="torch-1 cannot be started on node 1"),
        started(tmp_path, [], 2),
    ):
        pass
    assert workers_alive() == []
