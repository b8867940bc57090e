"""Weights and KV by NIXL: tokens are those of an undisturbed run, also where a peer dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.engine.mesh import Mesh
from tests.agents import on_nodes
from tests.integration import test_blitzscale_live as blitzscale
from tests.serving_elastic import Served

pytest.importorskip("nixl", reason="NIXL is not installed: pip install nixl")
pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

NIXL = "+engine.transport=nixl"


@pytest.fixture(autouse=True)
def no_bytes_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """In workers too, which are forked from this process."""
    send = Mesh.send

    def refusing(self: Mesh, name: str, header: Mapping[str, Any], *payload: Any) -> None:
        assert header["op"] != "bytes", "NIXL carries these"
        send(self, name, dict(header), *payload)

    monkeypatch.setattr(Mesh, "send", refusing)


def moved(served: Served) -> bool:
    return any(event["fields"]["layers"] for event in served.events("load"))


def test_layers_and_kv_come_by_nixl() -> None:
    served = blitzscale.live([*blitzscale.LIVE, NIXL])
    assert moved(served)
    assert served.events("kv_move")


def test_agents_connect_what_nixl_needs_between_nodes() -> None:
    with on_nodes():
        served = blitzscale.live([*blitzscale.LIVE, NIXL])
    assert moved(served)


@pytest.mark.parametrize("victim", [1, 2], ids=["the source", "the target"])
def test_a_death_while_bytes_are_written(victim: int) -> None:
    served = blitzscale.live([*blitzscale.LIVE, NIXL], kill=((victim, 1.2),))
    assert [event["instance"] for event in served.events("lost")] == [f"torch-{victim}"]
