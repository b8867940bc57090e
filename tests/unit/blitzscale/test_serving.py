"""BlitzScale and its baselines on simulated instances: what is served, loaded, held and lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.request import Request
from systems.blitzscale.instances import Role, State
from tests.running import hardware_profile
from tests.serving_elastic import Served, burst, serve

BASELINES = ("distserve", "blitzscale_serverlessllm", "blitzscale_allcache", "blitzscale")
CALM = [Request(0, 0.5 * i, "m", 100 + i, 20) for i in range(6)]


def loads(served: Served) -> list[dict[str, Any]]:
    return [event for event in served.events("load") if event["fields"]["layers"]]


@pytest.mark.parametrize("system", BASELINES)
def test_a_request_is_prefilled_in_one_place_and_decoded_in_another(system: str) -> None:
    served = serve([f"+system={system}"], CALM)
    assert served.statuses() == {"completed"}
    moves = served.events("kv_move")
    assert sorted(event["fields"]["requests"] for event in moves) == [[i] for i in range(6)]
    fleet = served.system.services[0].fleet
    for event in moves:
        assert event["instance"] != event["fields"]["to"]
        assert fleet.named(event["instance"]).role is Role.PREFILL
        assert fleet.named(event["fields"]["to"]).role is Role.DECODE
    assert not any(instance.kv.held for instance in served.bed.instances)
    assert not any(instance.kv.reserved for instance in served.bed.instances)


def test_a_requests_kv_is_one_flow() -> None:
    """Not one for each layer, also where pages are of one layer."""
    served = serve(["+system=blitzscale"], [Request(0, 0.0, "m", 128, 4)])
    flows = [e for e in served.events("kv_move") if e["fields"]["bytes"]]
    assert len(flows) == 1
    model = served.bed.model
    assert flows[0]["fields"]["bytes"] == 128 * model.kv_bytes_per_token


def test_a_request_of_one_token_needs_no_decode() -> None:
    served = serve(["+system=distserve"], [Request(0, 0.0, "m", 128, 1)])
    assert served.statuses() == {"completed"}
    assert not served.events("kv_move")


def test_a_prefills_capacity_comes_from_the_profile() -> None:
    """The artifact's constants are 15,000, 12,000 and 5,300 tokens/s for 8B, 24B and 72B."""
    service = serve(["+system=distserve"], CALM).system.services[0]
    seconds = service.fleet.profile.prefill_s(service.fleet.model, 512)
    assert service._capacity.prefill_tokens_per_s == 512 / seconds


def test_distserve_never_scales() -> None:
    served = serve(["+system=distserve"], burst(0.0, 20, 500, 10))
    assert served.statuses() == {"completed"}
    assert not loads(served)
    held = served.roles()
    assert set(held) == {"prefill", "decode"}
    assert held["prefill"] == pytest.approx(held["decode"])


def test_who_is_where_is_found_anew_when_an_instance_has_died() -> None:
    """It is kept between two changes. DistServe has no other one here."""
    served = serve(["+system=distserve"], CALM, kill=[(3, 1.0)])
    assert served.statuses() == {"completed"}
    fleet = served.system.services[0].fleet
    assert [slot.name for slot in fleet.of(Role.DECODE, State.SERVING)] == ["sim-2"]


def test_a_request_larger_than_an_instances_kv_is_refused() -> None:
    served = serve(
        ["+system=distserve", "engine.num_kv_blocks=8"],
        [Request(0, 0.0, "m", 100, 40), Request(0, 0.1, "m", 100, 10)],
    )
    first, second = served.recorder.records.values()
    assert first.status == "failed"
    assert "its KV of 139 tokens does not fit" in first.error
    assert second.status == "completed"


def test_decodes_wait_for_room_and_nobody_is_cut_off() -> None:
    """Room is kept for prompt and output, so that no decode is preempted."""
    served = serve(["+system=distserve", "engine.num_kv_blocks=24"], burst(0.0, 12, 100, 60))
    assert served.statuses() == {"completed"}
    assert not served.events("preempt")


def test_a_burst_brings_a_second_prefill_and_its_end_takes_it_away() -> None:
    served = serve(
        ["+system=blitzscale", "system.zigzag=false", "system.prescaling=false"],
        burst(0.0, 12, 500, 4), rest_s=5.0,
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    fleet = served.system.services[0].fleet
    serving = [slot for slot in fleet.slots if slot.state is not None]
    assert len(serving) == 2
    assert {slot.role for slot in serving} == {Role.PREFILL, Role.DECODE}
    assert {slot.state for slot in serving} == {State.SERVING}
    for slot in fleet.free():
        assert not slot.instance.resident
    assert {event["fields"]["role"] for event in served.events("slot")} == {
        "prefill", "decode", "loading",
    }  # fmt: skip


def test_new_instances_load_from_gpus_not_from_the_disk() -> None:
    served = serve(["+system=blitzscale", "system.zigzag=false"], burst(0.0, 12, 500, 4))
    sources = {event["fields"]["source"] for event in loads(served)}
    assert sources
    assert all(source.startswith("sim-") for source in sources), sources


def test_a_decode_is_the_source_where_a_prefill_sends_kv() -> None:
    served = serve(
        ["+system=blitzscale", "system.zigzag=false", "system.prescaling=false",
         "system.max_prefills=2"],
        burst(0.0, 12, 500, 4),
    )  # fmt: skip
    first = loads(served)[0]
    assert first["fields"]["source"] == "sim-1", "sim-0 is the prefill"


def test_without_pruning_a_prefill_is_the_source_and_its_kv_is_in_the_way() -> None:
    """Fig. 7 (b), Fig. 8: one prompt after the other, whose KV leaves as the parameters do."""
    steady = [each for k in range(40) for each in burst(0.16 * k, 1, 400, 4)]

    def load(*more: str) -> dict[str, Any]:
        stop = ["+system=blitzscale", "system.prescaling=false", "system.zigzag=false", *more]
        return serve([*stop, "system.max_prefills=2"], steady).events("load")[0]

    pruned, naive = load(), load("system.pruning=false")
    assert (pruned["fields"]["source"], naive["fields"]["source"]) == ("sim-1", "sim-0")
    slower = (naive["end_s"] - naive["start_s"]) / (pruned["end_s"] - pruned["start_s"])
    assert slower > 1.2


def test_several_targets_are_a_chain() -> None:
    """Each forwards what it gets: two targets end hardly later than one."""
    on = replace(hardware_profile("local_cluster_x4"), num_devices=6)
    only = [
        "+system=blitzscale", "system.zigzag=false", "system.prescaling=false",
        "system.max_decodes=1",
    ]  # fmt: skip

    def last_s(most: int, *more: str) -> tuple[float, set[str]]:
        served = serve([*only, f"system.max_prefills={most}", *more], burst(0.0, 40, 500, 4), on=on)
        first = [e for e in loads(served) if e["start_s"] == loads(served)[0]["start_s"]]
        assert len(first) == most - 1
        ends_s = max(event["end_s"] for event in first) - first[0]["start_s"]
        return ends_s, {event["fields"]["source"] for event in first}

    one_s, _ = last_s(2)
    three_s, sources = last_s(4)
    assert len(sources) == 3
    assert three_s < 2.5 * one_s, "two more hops of a layer each, of four unequal ones"
    alone_s, sources = last_s(4, "system.multicast=false")
    assert sources == {"sim-1"}
    assert alone_s == pytest.approx(3 * one_s, rel=0.05), "they divide one NIC"


def test_constant_load_is_no_reason_to_change() -> None:
    """Below the upper bound nothing is ever loaded, above it the same number stays."""
    steady = [Request(0, 0.2 * i, "m", 250, 10) for i in range(100)]  # 1,250 of 2,500 tokens/s
    served = serve(["+system=blitzscale", "system.prescaling=false"], steady)
    assert not loads(served)
    more = [Request(0, 0.1 * i, "m", 250, 10) for i in range(200)]  # all that one can do
    one = "system.max_decodes=1"  # whose NIC would ask for a second
    served = serve(["+system=blitzscale", "system.prescaling=false", one], more)
    taken = {event["fields"]["source"] for event in loads(served)}
    assert len(taken) == 1
    loading = [e for e in served.events("slot") if e["fields"]["role"] == "loading"]
    assert len(loading) == 1


def test_serverlessllm_reads_the_ssd_first_and_its_cache_then() -> None:
    two = burst(0.0, 12, 500, 4) + burst(40.0, 12, 500, 4)
    only = [
        "+system=blitzscale_serverlessllm", "system.prescaling=false", "system.max_prefills=2",
        "system.max_decodes=1",
    ]  # fmt: skip

    def sources(*more: str) -> list[str]:
        return [e["fields"]["source"][:3] for e in loads(serve([*only, *more], two, rest_s=20.0))]

    assert sources() == ["ssd", "dra"]
    assert sources("system.ttl_s=5") == ["ssd", "ssd"]
    assert sources("system.parameters=all_cache") == ["dra", "dra"]


def test_decodes_are_scaled_beforehand_with_prefills() -> None:
    """As many as keep their ratio, though their KV and NICs have room."""
    local = hardware_profile("local_cluster_x4")
    on = replace(local, num_devices=6, nic_bytes_per_s=10 * local.nic_bytes_per_s)
    only = ["+system=blitzscale", "system.zigzag=false", "system.max_prefills=3"]

    def decodes(*more: str) -> int:
        served = serve([*only, *more], burst(0.0, 12, 500, 4), on=on, rest_s=1.0)
        held = [e for e in served.events("slot") if e["fields"]["role"] == "decode"]
        return len({event["instance"] for event in held})

    assert decodes() == 3
    assert decodes("system.prescaling=false") == 1


def test_decodes_scaled_beforehand_give_their_gpus_to_prefills() -> None:
    """Two decodes and four prefills have all GPUs; then a burst wants a fifth prefill."""
    local = hardware_profile("local_cluster_x4")
    on = replace(local, num_devices=6, nic_bytes_per_s=10 * local.nic_bytes_per_s)
    requests = [*burst(0.0, 12, 500, 4), *burst(3.0, 200, 500, 4)]
    served = serve(["+system=blitzscale", "system.zigzag=false"], requests, on=on, rest_s=1.0)
    slots = [e for e in served.events("slot") if e["fields"]["role"] == "prefill"]
    at_once = [sum(e["start_s"] <= t < e["end_s"] for e in slots) for t in (3.1, 10.0)]
    assert at_once == [4, 5]


def test_a_prefill_becomes_a_decode_where_kv_needs_room() -> None:
    """Two prefills, of which one is enough; decodes run out of room."""
    requests = [Request(0, 0.3 * i, "m", 60, 400) for i in range(20)]
    served = serve(
        ["+system=blitzscale", "system.min_prefills=1", "system.instances=3",
         "system.prescaling=false", "engine.num_kv_blocks=60"],
        burst(0.0, 12, 500, 4) + [replace(r, arrival_s=4 + r.arrival_s) for r in requests],
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    events = [(e["instance"], e["fields"]["role"]) for e in served.events("slot")]
    names = {name for name, role in events if role == "prefill"}
    assert names & {name for name, role in events if role == "decode"}


def test_kv_goes_to_the_decode_that_has_least_of_it_on_its_way() -> None:
    """Else the NIC of the emptiest one would bring it all, one after the other."""
    served = serve(
        ["+system=distserve", "system.min_prefills=2", "system.min_decodes=2"],
        burst(0.0, 8, 200, 4),
    )  # fmt: skip
    moves = served.events("kv_move")
    first = [event["fields"]["to"] for event in moves[:2]]
    assert len(set(first)) == 2
    counts = [sum(e["fields"]["to"] == name for e in moves) for name in first]
    assert counts == [4, 4]
