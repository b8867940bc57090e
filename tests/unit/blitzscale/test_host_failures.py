"""Hosts that fail in a running simulation: instances and host copies go at once; nothing is lost,
and each model has a copy again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import UsageError
from tests.running import hardware_profile
from tests.serving_elastic import Served, burst, serve
from tests.unit.blitzscale.test_models import EIGHT, MODELS, NONE, asks, never_shared, slots

QUIET = [each for name in MODELS for each in asks(name, {"a": 0.0, "b": 15.0, "c": 15.5}[name])]


def copies_again(served: Served) -> None:
    """Each model has a complete copy in a GPU that lives, or on one host that does."""
    pool = served.system.data_plane.pool
    hosts = served.bed.cluster.hosts
    for service in served.system.services:
        model, whole = service.fleet.slots[0].model, range(service.fleet.model.num_layers)
        gpus = [
            slot.name
            for slot in service.fleet.slots
            if not slot.lost and slot.state is not None and slot.instance.resident >= set(whole)
        ]
        on = [node for node, host in hosts.items() if model in host]
        assert gpus or on, f"{model} has no copy"
        assert len(on) <= 1
        assert on == [node for key, node in pool.host_copies.items() if key == model]
        assert not any(hosts[node].lost for node in on)


def balance(served: Served) -> None:
    """GPU-seconds: no GPU is held twice at a time, nor after its host has failed."""
    never_shared(served)
    dead = {
        int(event["instance"].removeprefix("node-")): event["start_s"]
        for event in served.events("host_lost")
    }
    per_node = served.bed.cluster.hardware.devices_per_node
    for _, gpu, _, end_s in slots(served):
        assert end_s <= dead.get(gpu // per_node, 1e9) + 1.0, "until the death is known"
    for instance in served.bed.instances:
        assert instance.lost is not None or not instance.kv.held


@settings(max_examples=12, deadline=None)
@given(host=st.integers(0, 7), at_s=st.floats(0.0, 22.0), none=st.booleans())
def test_after_any_host_failure_each_model_has_a_copy_again(
    host: int, at_s: float, none: bool
) -> None:
    least = NONE if none else []
    served = serve(
        ["+system=blitzscale", *least], QUIET, models=MODELS, on=EIGHT, kill_hosts=[(host, at_s)],
        rest_s=40.0,
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    copies_again(served)
    balance(served)


def test_what_no_memory_has_is_read_from_disk() -> None:
    """The host of b's one copy fails while no GPU has b."""
    held: list[int] = []

    def find(system: Any) -> None:
        held.append(system.data_plane.pool.host_copies["tiny-llama-wide"])

    serve(["+system=blitzscale", *NONE], asks("a", 0.0), models=MODELS, on=EIGHT, watch=find)
    served = serve(
        ["+system=blitzscale", *NONE], QUIET, models=MODELS, on=EIGHT, rest_s=30.0,
        kill_hosts=[(held[0], 5.0)],
    )  # fmt: skip
    again = [e for e in served.events("host_copy") if e["fields"]["model"] == "tiny-llama-wide"]
    assert again
    assert again[0]["start_s"] >= 5.0
    assert again[0]["fields"]["complete"]
    assert served.statuses() == {"completed"}
    copies_again(served)


def test_a_load_from_a_hosts_memory_is_planned_again_when_it_fails() -> None:
    calm = serve(["+system=blitzscale", *NONE], asks("b", 1.0), models=MODELS, on=EIGHT)
    first = next(e for e in calm.events("load") if e["fields"]["source"].startswith("dram"))
    node = int(first["fields"]["source"].removeprefix("dram").partition(":")[0])
    middle_s = (first["start_s"] + first["end_s"]) / 2
    served = serve(
        ["+system=blitzscale", *NONE], asks("b", 1.0), models=MODELS, on=EIGHT,
        kill_hosts=[(node, middle_s)], rest_s=10.0,
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    sources = [e["fields"]["source"][:3] for e in served.events("load") if e["start_s"] >= middle_s]
    assert "ssd" in sources
    copies_again(served)


@pytest.mark.parametrize(("host", "at_s"), [(0, 1.0), (1, 8.05)])
def test_one_of_two_hosts_fails_in_mid_run(host: int, at_s: float) -> None:
    """Host 0 while the other one loads from it; host 1 with the only copies. SSD is left."""
    two = replace(hardware_profile("local_cluster_x4"), devices_per_node=2)
    bursts = [each for i in range(5) for each in burst(4.0 * i, 8, 300, 6)]
    served = serve(
        ["+system=blitzscale"], bursts, on=two, kill_hosts=[(host, at_s)], rest_s=30.0
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    held = [(gpu // 2, start_s, end_s) for _, gpu, start_s, end_s in slots(served)]
    assert any(node == host and start_s < at_s < end_s for node, start_s, end_s in held), "in use"
    assert {node for node, _, end_s in held if end_s > at_s + 1.0} == {1 - host}
    again = [e for e in served.events("load") if e["start_s"] > at_s and e["fields"]["layers"]]
    assert again[0]["fields"]["source"].startswith("ssd")
    copies_again(served)
    balance(served)


def test_nothing_is_loaded_to_a_failed_host_before_its_instances_deaths_are_known() -> None:
    """b is asked for between the failure of the host that has b's one copy and their deaths."""
    for node in range(4):
        asked = [replace(each, arrival_s=each.arrival_s + 5.0) for each in asks("b", 0.01)]
        served = serve(
            ["+system=blitzscale", *NONE], asked, models=MODELS, kill_hosts=[(node, 5.0)],
        )  # fmt: skip
        assert served.statuses() == {"completed"}
        assert not [gpu for _, gpu, start_s, _ in slots(served) if gpu == node and start_s > 5.0]


@pytest.mark.parametrize("system", ["blitzscale_serverlessllm", "blitzscale_allcache"])
def test_the_baselines_lose_what_the_host_cached(system: str) -> None:
    both = burst(0.0, 12, 400, 6) + burst(20.0, 12, 400, 6)
    served = serve([f"+system={system}"], both, kill_hosts=[(2, 10.0)], rest_s=5.0)
    assert served.statuses() == {"completed"}
    assert "sim-2" not in {e["instance"] for e in served.events("load") if e["start_s"] > 10.0}
    assert not any(model in served.bed.cluster.hosts[2] for model in ("tiny-llama",))


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ([(4, 1.0)], "faults.kill names host 4; valid: 0 to 3"),
        ([(-1, 1.0)], "faults.kill names host -1; valid: 0 to 3"),
        ([(i, 1.0) for i in range(4)], "faults.kill names all 4 hosts: leave one"),
    ],
)
def test_bad_hosts_are_one_sentence(hosts: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve(["+system=blitzscale"], burst(0.0, 1, 100, 2), kill_hosts=hosts)
