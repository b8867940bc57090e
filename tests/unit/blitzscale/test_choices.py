"""Which NIC a scale-up reads from, which free GPUs it takes, and what solving costs a live pair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.clock import VirtualLoop
from systems.blitzscale.schedulers import Limits
from systems.blitzscale.timeline import PairTimes
from tests.running import hardware_profile
from tests.serving_elastic import burst, serve

STOP = ["+system=blitzscale", "system.zigzag=false", "system.prescaling=false"]


def test_a_nic_that_sends_parameters_is_no_source_while_another_has_a_copy() -> None:
    """Two decodes have copies. While one sends them to a new prefill, a second burst comes."""
    on = replace(hardware_profile("local_cluster_x4"), num_devices=6)
    only = [*STOP, "system.min_decodes=2", "system.max_decodes=2", "system.max_prefills=3"]
    served = serve(only, burst(0.0, 4, 500, 4) + burst(0.3, 40, 500, 4), on=on)
    first, second = [e for e in served.events("load") if e["fields"]["layers"]][:2]
    assert first["start_s"] < second["start_s"] < first["end_s"]
    assert {first["fields"]["source"], second["fields"]["source"]} == {"sim-1", "sim-2"}


@pytest.mark.parametrize(("spares", "taken"), [("near", "sim-2"), ("spread", "sim-3")])
def test_a_scale_up_takes_gpus_beside_a_copy_or_where_most_are_free(
    spares: str, taken: str
) -> None:
    """The copies are on a node with one GPU left; the other node has three."""
    local = hardware_profile("local_cluster_x4")
    nvlink = 100 * local.nic_bytes_per_s
    on = replace(local, num_devices=6, devices_per_node=3, nvlink_copy_bytes_per_s=nvlink)
    served = serve([*STOP, f"system.spares={spares}"], burst(0.0, 12, 500, 4), on=on)
    first = next(e for e in served.events("load") if e["fields"]["layers"])
    assert first["instance"] == taken


@pytest.mark.parametrize(("scheduler", "charged_s"), [("ilp", 0.5), ("overlap", 0.0)])
def test_the_time_of_solving_the_program_is_charged(scheduler: str, charged_s: float) -> None:
    """ "Less than 40ms to solve" (§5.2): in a simulation no time would pass otherwise."""
    loop = VirtualLoop()
    times = PairTimes(num_layers=4, layer_s=(1.0, 1.0), ready_s=(0.0, 2.0, 4.0, 6.0))

    async def main() -> None:
        assert len(await Limits(scheduler, 0.5, loop).planned(times)) >= 2
        assert loop.now == charged_s

    loop.run(main())
