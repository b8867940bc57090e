"""Live scaling and deaths on simulated instances: what is split, who takes over, what is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.request import Request
from systems.blitzscale.chains import Medium, Target
from systems.blitzscale.loads import Pull, pulls
from systems.blitzscale.planner import plan
from tests.running import hardware_profile
from tests.serving_elastic import Served, burst, serve
from tests.unit.blitzscale.clusters import LAYERS, fabric, source

LIVE = ["+system=blitzscale", "system.prescaling=false", "system.max_prefills=2"]
BURST = burst(0.0, 14, 500, 6)


def test_prompts_run_on_both_while_layers_arrive() -> None:
    served = serve(LIVE, BURST)
    assert served.statuses() == {"completed"}
    stop = serve([*LIVE, "system.zigzag=false"], BURST)
    split_moves = [e for e in served.events("kv_move") if len(e["fields"]["groups"]) < 4]
    assert split_moves, "KV of a split batch comes from two instances"
    first = served.events("load")[0]
    during = [e for e in split_moves if e["start_s"] < first["end_s"]]
    assert during, "before the last layer was there"
    assert sum(served.ttft_s()) < sum(stop.ttft_s())
    assert not any(
        "2" in e["instance"] for e in stop.events("kv_move") if e["start_s"] < first["end_s"]
    )


def test_a_tail_that_is_fast_enough_does_not_go_live() -> None:
    served = serve([*LIVE, "system.live_slo_s=60"], BURST)
    assert all(len(e["fields"]["groups"]) == 4 for e in served.events("kv_move"))


def test_who_is_overloaded_while_another_loads_gets_a_pair_then() -> None:
    """The load begins for eight prompts that stopping the world serves in time; a burst follows."""
    early = serve([*LIVE, "system.live_slo_s=3"], burst(0.0, 8, 500, 6))
    assert early.events("load")
    assert all(len(e["fields"]["groups"]) == 4 for e in early.events("kv_move")), "no pair"
    late = serve([*LIVE, "system.live_slo_s=3"], burst(0.0, 8, 500, 6) + burst(0.5, 30, 500, 6))
    load = late.events("load")[0]
    assert load["start_s"] < 0.5 < load["end_s"]
    split = [e for e in late.events("kv_move") if len(e["fields"]["groups"]) < 4]
    assert any(load["start_s"] < each["start_s"] < load["end_s"] for each in split)


def test_until_the_program_is_solved_a_served_pair_goes_on_without_limits() -> None:
    """The time of solving is the configured one: solved at once, the limits bring first tokens
    earlier; solved after the run, the pair hands over as the ILP-free rule does."""
    free = sum(serve(LIVE, BURST).ttft_s())
    at_once, too_late = (
        sum(serve([*LIVE, "system.scheduler=ilp", f"system.ilp_solving_s={s}"], BURST).ttft_s())
        for s in (0.0, 60.0)
    )
    assert at_once < free - 0.5
    assert too_late == pytest.approx(free)


@pytest.mark.parametrize(("variant", "most"), [("paper", 6), ("artifact", 2)])
def test_a_served_pair_has_no_more_batches_under_way_than_its_variants_bound(
    variant: str, most: int
) -> None:
    """The public code's bound has fallen to two when the first layer comes; the paper has none."""
    found = []

    def watch(system: Any) -> None:
        pairing = system.services[0]._pairing

        async def look() -> None:
            while True:
                for pair in pairing._pairs:
                    begun = sum(batch.executed > 0 for batch in pair._queue)
                    found.append(begun + (pair._taken is not None))
                await pairing._loop.sleep(0.01)

        pairing._loop.spawn(look(), name="look")

    served = serve([*LIVE, f"system.variant={variant}"], BURST, watch=watch)
    assert served.statuses() == {"completed"}
    assert max(found) == most


def test_what_two_nics_bring_is_exchanged_between_them() -> None:
    """Fig. 14 by whole layers: each layer crosses the network once and NVLink once."""
    network = fabric([(2, 0), (2, 0)])
    targets = [Target(name=f"t{i}", devices=(2 + i,)) for i in range(2)]
    sources = [replace(source(network, 0), devices=(i,)) for i in range(2)]
    found = pulls(plan(network, sources, targets, LAYERS), 8)
    assert found == [
        Pull("t0", range(0, 8, 2), Medium.GPU, 0), Pull("t0", range(1, 8, 2), Medium.GPU, 3),
        Pull("t1", range(0, 8, 2), Medium.GPU, 2), Pull("t1", range(1, 8, 2), Medium.GPU, 1),
    ]  # fmt: skip


def killed(instance: int, at_s: float, *more: str) -> Served:
    """Two prefills are loaded in a chain of two, with six slots."""
    on = replace(hardware_profile("local_cluster_x4"), num_devices=6)
    overrides = ["+system=blitzscale", "system.max_prefills=3", "system.prescaling=false", *more]
    return serve(overrides, burst(0.0, 30, 400, 12), on=on, kill=[(instance, at_s)])


@pytest.mark.parametrize("at_s", [0.9, 1.7])
@pytest.mark.parametrize("victim", ["overloaded", "source", "middle", "tail"])
def test_every_request_completes_though_one_dies(victim: str, at_s: float) -> None:
    number = {"overloaded": 0, "source": 1, "middle": 2, "tail": 3}[victim]
    served = killed(number, at_s)
    assert [event["instance"] for event in served.events("lost")] == [f"sim-{number}"]
    assert served.statuses() == {"completed"}
    for instance in served.bed.instances:
        if instance.lost is None:
            assert not instance.kv.held
            assert not instance.kv.reserved
    assert served.system.services[0].prompts.tokens == 0


def test_a_chain_is_planned_again_where_its_middle_dies() -> None:
    served = killed(2, 1.4, "system.zigzag=false")
    tail = [e for e in served.events("load") if e["instance"] == "sim-3" and e["start_s"] < 3.0]
    sources = [event["fields"]["source"] for event in tail]
    assert sources[0] == "sim-2"
    assert "sim-2" not in sources[1:]
    first, again = (set(event["fields"]["layers"]) for event in tail[:2])
    assert first, "what had come stays"
    assert first | again == {0, 1, 2, 3}
    assert not first & again


def test_where_all_copies_die_the_ssd_has_the_last_one() -> None:
    served = serve(
        ["+system=blitzscale", "system.max_prefills=1", "system.max_decodes=1"],
        burst(0.0, 3, 200, 12), kill=[(0, 0.05), (1, 0.05)],
    )  # fmt: skip
    assert served.statuses() == {"completed"}
    assert any(e["fields"]["source"].startswith("ssd") for e in served.events("load"))
    assert any(e["fields"]["complete"] for e in served.events("host_copy"))


def test_a_lost_requests_tokens_are_not_stamped_twice() -> None:
    served = serve(["+system=distserve"], [Request(0, 0.0, "m", 100, 200)] * 1, kill=[(2, 2.0)])
    (record,) = served.recorder.records.values()
    assert record.num_preemptions == 1
    assert len(record.token_times_s()) == 200
