"""Whole systems with their instances on two or three nodes: tokens are those of one host.

A node is an agent in this process; its workers, and what passes between nodes, are as on a Ray
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents import on_nodes
from tests.contract import test_system as contract
from tests.integration import test_blitzscale_live as blitzscale
from tests.integration import test_kunserve_live as kunserve
from tests.integration import test_llumnix_live as llumnix
from tests.integration import test_pooling_systems_live as pooling
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


@pytest.mark.parametrize("kill", [(), ((1, 1.2),)], ids=["", "though the source dies"])
def test_blitzscale_gets_weights_from_another_node(kill: tuple[tuple[int, float], ...]) -> None:
    served = blitzscale.live(blitzscale.LIVE, kill)
    first = next(event for event in served.events("load") if event["fields"]["layers"])
    assert first["fields"]["source"] == "torch-1"
    assert len(served.events("lost")) == len(kill)


def test_kunserve_drops_exchanges_and_restores_over_nodes() -> None:
    kunserve.test_a_burst_is_served_by_dropping_parameters("live")


def test_an_instance_of_two_ranks_is_served_on_each_node(tmp_path: Path) -> None:
    contract.test_a_system_serves_twenty_requests(contract.TWO_RANKS, "torch", tmp_path)


def test_llumnix_migrates_to_another_node() -> None:
    llumnix.test_requests_that_migrate_while_they_decode_keep_their_tokens()
