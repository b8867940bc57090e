"""BlitzScale on real workers: every request's tokens are those of an undisturbed run, whatever was
split, moved, loaded and killed meanwhile."""

from __future__ import annotations

import pytest

from tests.serving_elastic import Served, burst, serve

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

# Layers of at least 20 ms, and links that let a layer come while six are computed.
PACED = [
    "engine.elastic.paced=true", "engine.elastic.layer_s=0.005", "engine.elastic.token_s=0.0001",
    "engine.cpu_kv_bytes=67108864", "engine.num_threads=1",
]  # fmt: skip
LIVE = ["+system=blitzscale", "system.prescaling=false", "system.max_prefills=2", *PACED]
BURST = burst(0.2, 14, 400, 12)


def live(overrides: list[str], kill: tuple[tuple[int, float], ...] = ()) -> Served:
    served = serve([*overrides, "hardware.num_devices=3"], BURST, engine="torch", kill=kill)
    assert served.statuses() == {"completed"}
    assert served.tokens == served.alone
    return served


def test_a_burst_is_split_between_an_instance_and_one_that_loads() -> None:
    served = live(LIVE)
    assert min(served.ttft_s()) >= 400 * 4 * 0.0001, "paced: four layers of 0.1 ms a token"
    loads = [event for event in served.events("load") if event["fields"]["layers"]]
    assert {event["fields"]["source"] for event in loads[:1]} == {"torch-1"}, "a peer's process"
    split = [e for e in served.events("kv_move") if len(e["fields"]["groups"]) < 4]
    assert any(event["start_s"] < loads[0]["end_s"] for event in split), "before it was there"
    assert any(e["instance"] == "torch-2" for e in served.events("kv_move"))


@pytest.mark.parametrize("system", ["distserve", "blitzscale_serverlessllm", "blitzscale_allcache"])
def test_the_baselines(system: str) -> None:
    served = live([f"+system={system}", "system.instances=3", *PACED])
    sources = [e["fields"]["source"] for e in served.events("load") if e["fields"]["layers"]]
    allowed = {"distserve": (), "blitzscale_serverlessllm": ("ssd", "dram")}
    assert all(source.startswith(allowed.get(system, ("dram",))) for source in sources)


@pytest.mark.parametrize(("victim", "at_s"), [(0, 1.2), (1, 1.2), (2, 1.2)])
def test_a_death_in_mid_scale(victim: int, at_s: float) -> None:
    """Of the overloaded one, of the source and decode, of the target."""
    served = live(LIVE, kill=((victim, at_s),))
    assert [event["instance"] for event in served.events("lost")] == [f"torch-{victim}"]


COLOCATED = ["+system=blitzscale_colocated", "system.max_prefills=2", *PACED]


def test_colocated_instances_split_prompts_and_collect_their_kv() -> None:
    served = live(COLOCATED)
    loads = [event for event in served.events("load") if event["fields"]["layers"]]
    assert {event["fields"]["source"] for event in loads[:1]} == {"torch-0"}, "a peer's process"
    moves = served.events("kv_move")
    assert moves
    assert all(len(event["fields"]["groups"]) < 4 for event in moves), "what was split"


def test_a_colocated_target_dies_in_mid_scale() -> None:
    served = live(COLOCATED, kill=((1, 1.2),))
    assert [event["instance"] for event in served.events("lost")] == ["torch-1"]
