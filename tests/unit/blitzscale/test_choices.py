"""Which NIC a scale-up reads from, which free GPUs it takes, and what solving costs a live pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.clock import VirtualLoop
from harness.request import Request
from systems.blitzscale.chains import Medium, Source
from systems.blitzscale.planner import plan
from systems.blitzscale.schedulers import Limits
from systems.blitzscale.timeline import PairTimes
from tests.running import hardware_profile
from tests.serving_elastic import burst, serve
from tests.unit.blitzscale.clusters import LAYERS, fabric, source, target

STOP = ["+system=blitzscale", "system.zigzag=false", "system.prescaling=false"]


def test_a_nic_that_sends_parameters_is_no_source_while_another_has_a_copy() -> None:
    """Two decodes have copies. While one sends them to a new prefill, a second burst comes."""
    on = replace(hardware_profile("local_cluster_x4"), num_devices=6)
    only = [*STOP, "system.min_decodes=2", "system.max_decodes=2", "system.max_prefills=3"]
    served = serve(only, burst(0.0, 4, 500, 4) + burst(0.3, 40, 500, 4), on=on)
    first, second = [e for e in served.events("load") if e["fields"]["layers"]][:2]
    assert first["start_s"] < second["start_s"] < first["end_s"]
    assert {first["fields"]["source"], second["fields"]["source"]} == {"sim-1", "sim-2"}


def test_without_multicast_sources_take_turns() -> None:
    """Two decodes have copies, and one look of the monitor asks for four prefills."""
    on = replace(hardware_profile("local_cluster_x4"), num_devices=7)
    only = [*STOP, "system.multicast=false", "system.min_decodes=2", "system.max_decodes=2"]
    served = serve(only, burst(0.0, 60, 500, 4), on=on)
    loads = [e for e in served.events("load") if e["fields"]["layers"]]
    at_once = [e["fields"]["source"] for e in loads if e["start_s"] == loads[0]["start_s"]]
    assert sorted(at_once) == ["sim-1", "sim-1", "sim-2", "sim-2"]


@pytest.mark.parametrize(("spares", "taken"), [("near", "sim-2"), ("spread", "sim-3")])
def test_a_scale_up_takes_gpus_beside_a_copy_or_where_most_are_free(
    spares: str, taken: str
) -> None:
    """The copies are on a node with one GPU left; the other node has three."""
    local = hardware_profile("local_cluster_x4")
    nvlink = 100 * local.nic_bytes_per_s
    on = replace(local, num_devices=6, devices_per_node=3, nvlink_copy_bytes_per_s=nvlink)
    one = [*STOP, f"system.spares={spares}", "system.max_prefills=2", "system.max_decodes=1"]
    served = serve(one, burst(0.0, 12, 500, 4), on=on)
    first = next(e for e in served.events("load") if e["fields"]["layers"])
    assert first["instance"] == taken


def test_a_chain_behind_a_slow_hop_is_as_slow_as_that_hop() -> None:
    """On leaf 1 a source with one NIC feeds t2, which feeds t3 by eight. t4 is on leaf 0, of eight
    NICs: t3 could send it 3.6 NICs' worth and has one's; the source beside it sends two."""
    net = fabric([(1, 1), (2, 0), (8, 1), (8, 1), (8, 0)], share=0.45)
    new = [target(net, node) for node in (2, 3, 4)]
    found = plan(net, [source(net, 0), source(net, 1)], new, LAYERS)
    chains = [[hop.targets[0].name for hop in chain.hops] for chain in found.chains]
    assert sorted(chains) == [["t2", "t3"], ["t4"]]


def test_pcie_to_the_nic_limits_a_host_copy() -> None:
    net = replace(fabric([(2, 0), (1, 0)]), pcie_bytes_per_s=0.25)
    host = Source(medium=Medium.HOST, node=0)
    ((hop,),) = (chain.hops for chain in plan(net, [host], [target(net, 1)], LAYERS).chains)
    assert hop.bytes_per_s == 0.25


def test_kv_that_waits_for_room_brings_a_decode() -> None:
    """Room for one of two requests is used to 63 %, below the bound; the other waits."""
    few = ["+system=blitzscale", "system.prescaling=false", "system.max_prefills=1"]
    two = [Request(0, 0.01 * i, "m", 500, 100) for i in range(2)]
    served = serve([*few, "engine.num_kv_blocks=60"], two)
    decodes = {e["instance"] for e in served.events("slot") if e["fields"]["role"] == "decode"}
    assert len(decodes) == 2


def test_kv_waits_for_decodes_first_come_first_served() -> None:
    served = serve(["+system=distserve", "engine.num_kv_blocks=24"], burst(0.0, 12, 100, 60))
    records = served.recorder.records.values()
    second_s = [float(record.token_times_s()[1]) for record in records]
    assert second_s == sorted(second_s)


def test_a_decode_that_is_fuller_gets_its_part_of_the_kv_all_the_same() -> None:
    """Of two decodes one holds a long answer. A burst's KV uses the NICs of both."""
    two = ["+system=distserve", "system.min_prefills=2", "system.min_decodes=2"]
    long = Request(0, 0.0, "m", 900, 300)
    served = serve(two, [long, *burst(2.0, 8, 200, 4)])
    moves = served.events("kv_move")
    (full,) = {e["fields"]["to"] for e in moves if e["fields"]["requests"] == [0]}
    others = [e["fields"]["to"] for e in moves if e["fields"]["requests"] != [0]]
    assert 3 <= others.count(full) <= 5


@pytest.mark.parametrize(("scheduler", "charged_s"), [("ilp", 0.5), ("overlap", 0.0)])
def test_the_time_of_solving_the_program_is_charged(scheduler: str, charged_s: float) -> None:
    """ "Less than 40ms to solve" (§5.2): in a simulation no time would pass otherwise."""
    loop = VirtualLoop()
    times = PairTimes(num_layers=4, layer_s=(1.0, 1.0), ready_s=(0.0, 2.0, 4.0, 6.0))

    async def main() -> None:
        assert len(await Limits(scheduler, 0.5, loop).planned(times)) >= 2
        assert loop.now == charged_s

    loop.run(main())
