"""BlitzScale on real workers: every request's tokens are those of an undisturbed run, whatever was
split, moved, loaded and killed meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from systems.blitzscale.instances import State
from tests.serving_elastic import Served, burst, serve

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

# Layers of at least 20 ms, and links that let a layer come while six are computed.
PACED = [
    "engine.elastic.paced=true", "engine.elastic.layer_s=0.005", "engine.elastic.token_s=0.0001",
    "engine.cpu_kv_bytes=67108864", "engine.num_threads=1",
]  # fmt: skip
LIVE = ["+system=blitzscale", "system.prescaling=false", "system.max_prefills=2", *PACED]
Strikes = tuple[tuple[int, float], ...]  # whom, and when in seconds
BURST = burst(0.2, 14, 400, 12)


def live(overrides: list[str], kill: Strikes = (), kill_hosts: Strikes = ()) -> Served:
    overrides = [*overrides, "hardware.num_devices=3"]
    served = serve(overrides, BURST, engine="torch", kill=kill, kill_hosts=kill_hosts)
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


@pytest.mark.parametrize("victim", [1, 2])
def test_a_death_in_mid_scale(victim: int) -> None:
    """Of the source and decode, of the target."""
    served = live(LIVE, kill=((victim, 1.2),))
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


CHAIN = [
    "+system=blitzscale", "system.prescaling=false", "system.zigzag=false", "system.max_decodes=1",
    "system.max_prefills=4", "hardware.nic_bytes_per_s=5.0e+6", *PACED,
]  # fmt: skip


def test_the_middle_of_a_chain_of_three_dies_and_the_rest_is_planned_again() -> None:
    """A layer is on a link for more than half a second. Whoever loads, forwards and has its first
    layer dies."""
    killed: list[str] = []

    def watch(system: Any) -> None:
        slots = system.services[0].fleet.slots

        async def kill() -> None:
            while not killed:
                for slot in slots:
                    if slot.state is State.LOADING and slot.readers and slot.instance.resident:
                        killed.append(slot.name)
                        system._elastic.kill(slot.instance)
                        return
                await system._loop.sleep(0.02)

        system._loop.spawn(kill(), name="kill the middle")

    served = serve(
        [*CHAIN, "hardware.num_devices=5"], burst(0.25, 14, 400, 2), engine="torch", watch=watch
    )
    assert served.statuses() == {"completed"}
    assert served.tokens == served.alone
    lost = served.events("lost")
    assert [event["instance"] for event in lost] == killed
    loads = served.events("load")
    readers = {e["instance"] for e in loads if e["fields"]["source"] == killed[0]}
    assert readers, "it had forwarded"
    for name in readers:
        mine = [event for event in loads if event["instance"] == name]
        again = [
            event["fields"]["source"] for event in mine if event["start_s"] > lost[0]["start_s"]
        ]
        assert again
        assert killed[0] not in again
        layers = [layer for event in mine for layer in event["fields"]["layers"]]
        assert sorted(layers) == [0, 1, 2, 3], "none twice: what had come stays"


def test_stop_the_world_from_disk() -> None:
    """ServerlessLLM on a miss: a file is read at the SSD's pace, and nothing is split."""
    disk = [
        "+system=blitzscale_serverlessllm", "system.prescaling=false", "system.max_prefills=2",
        "system.max_decodes=1", "hardware.ssd_bytes_per_s=2.0e+7", *PACED,
    ]  # fmt: skip
    served = live(disk)
    loads = [event for event in served.events("load") if event["fields"]["layers"]]
    assert [event["fields"]["source"].partition(":")[0] for event in loads[:1]] == ["ssd2"]
    layers_bytes = served.bed.instances[2].layout.layer_at
    least_s = sum(len(at) for at in layers_bytes) / 2.0e7
    assert loads[0]["end_s"] - loads[0]["start_s"] >= least_s, "paced"
    moves = [e for e in served.events("kv_move") if e["instance"] == "torch-2"]
    assert moves
    assert all(event["start_s"] >= loads[0]["end_s"] for event in moves), "nothing before it ends"
