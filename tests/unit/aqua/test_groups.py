"""Several consumers that borrow of one tensor-parallel lender, each of its own device of it."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.cost.model import CostModel
from harness.device.location import hbm
from harness.errors import RunError, UsageError
from harness.placement import Demand, Elastic, Placement
from harness.running.testbed import Bed
from harness.sim.beside_copies import beside_copies
from systems.aqua.system import Aqua
from tests.aqua import Asked, Kill, lent_stores, moved, placed_bed, serve, system
from tests.elastic import hardware, spec
from tests.fuzz.test_overrides import answer
from tests.running import composed, hardware_profile, run_here

NUM = 4
FOUR = f"system.pairs=[{{consumers: [{','.join(NUM * ['tiny-llama'])}], lender: wide}}]"
LENDS = (
    FOUR, "system.lender.every=null", "system.lender.free_share=0.9",
    "system.consumer.kv_share=0.03125",
    "system.informer.min_offer_bytes=1",
    "system.variants.paper.scheduler.fcfs_when_in_dram=never",
)  # fmt: skip
EIGHT = replace(hardware_profile("local_paced"), num_devices=8, devices_per_node=8)
CROWD = [Asked(0.001 * i, 90 + 7 * i, 40 + 5 * (i % 4)) for i in range(40)]
BURST = [Asked(0.4, 60, 30, "lender") for _ in range(60)]
OUT = ("page out to lease", "page out to DRAM")
INTO = ("page in from lease", "page in from DRAM")


def bed() -> AbstractContextManager[Bed]:
    """Four instances on a device each, and a lender on four."""
    consumer = spec()
    lender = replace(consumer, name="wide", tp=NUM)
    elastic = Elastic(page_layers=None)
    own = [
        Placement(devices=range(i, i + 1), model=consumer.name, elastic=elastic) for i in range(NUM)
    ]
    beside = Placement(devices=range(NUM, 2 * NUM), model=lender.name, own=lender, elastic=elastic)
    return placed_bed(consumer, EIGHT, [*own, beside])


def served(made: Bed) -> None:
    assert {record.status for record in made.recorder.records.values()} == {"completed"}
    assert not made.cluster.directory.wheres
    assert not any(instance.kv.held for instance in made.instances if instance.lost is None)


def test_each_consumers_tensors_lie_on_its_own_device_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bed() as made:
        aqua = system(made, "aqua", *LENDS)
        names = [instance.name for instance in made.instances]
        stores = {}
        go = made.cluster.lend_parts

        async def recorded(*words: Any) -> Any:
            found = await go(*words)
            stores.update({store.name: store.memory for store in found})
            return found

        monkeypatch.setattr(made.cluster, "lend_parts", recorded)
        serve(made, aqua, CROWD)
        served(made)
        out = moved(made, "page out to lease")
        assert {event["instance"] for event in out} == set(names[:NUM])
        for event in out:
            memory = stores[event["fields"]["to"]]
            assert memory.name == names[NUM]
            assert memory.place == hbm(0, NUM + names.index(event["instance"]))


def test_bytes_are_conserved_on_each_device() -> None:
    with bed() as made:
        aqua = system(made, "aqua", *LENDS)
        whole = made.instances[NUM].kv.num_pages
        serve(made, aqua, CROWD)
        for instance in made.instances[:NUM]:
            out, into = (
                sum(
                    event["fields"]["bytes"]
                    for purpose in purposes
                    for event in moved(made, purpose)
                    if instance.name in (event["instance"], event["fields"]["to"])
                )
                for purposes in (OUT, INTO)
            )
            assert out == into > 0
        lender = made.instances[NUM]
        lent = [store.kv.num_pages * store.page_bytes for store in lent_stores(aqua)]
        assert len(lent) == NUM
        assert len(set(lent)) == 1
        assert lender.kv.num_pages + lent[0] // lender.page_bytes == whole


def test_a_reclaim_reaches_all_consumers_and_comes_home_once() -> None:
    with bed() as made:
        aqua = system(made, "aqua", *LENDS, "system.max_num_seqs=16")
        whole = made.instances[NUM].kv.num_pages
        long = [Asked(0.001 * i, 90, 350) for i in range(40)]
        serve(made, aqua, long + BURST)
        served(made)
        away = moved(made, "migrate to DRAM")
        assert {event["instance"].partition(" of ")[2] for event in away} == {
            f"device {i}" for i in range(NUM)
        }
        leases = [event for event in made.recorder.events if event["kind"] == "lease"]
        first, second = leases[:2]
        assert 0.4 < away[-1]["end_s"] <= first["end_s"] < second["start_s"]
        for event in made.recorder.events:  # nobody's KV is in it any more when it comes home
            if event["kind"] == "kv_move" and first["end_s"] < event["start_s"] < second["start_s"]:
                assert "lent by" not in event["instance"] + event["fields"]["to"]
        page = made.instances[NUM].page_bytes
        lent = {store.kv.num_pages * store.page_bytes for store in lent_stores(aqua)}
        assert made.instances[NUM].kv.num_pages + sum(lent) // page == whole


def test_a_dead_lender_is_lost_to_all_its_consumers() -> None:
    with bed() as made:
        aqua = system(made, "aqua", *LENDS)
        serve(made, aqua, [*CROWD, Asked(0.01, 60, 400, "lender")], Kill(NUM, 0.1))
        assert {record.status for record in made.recorder.records.values()} == {"completed"}
        again = {r.instance for r in made.recorder.records.values() if r.num_preemptions}
        assert again
        late = [e for e in moved(made, "page out to lease") if e["start_s"] > 0.1 + 0.11]
        assert not late
        assert {e["instance"] for e in moved(made, "page out to DRAM")} == {
            instance.name for instance in made.instances[:NUM]
        }


@pytest.mark.parametrize("kills", [[3], [0, 1], [0, 1, 2, 3]])
def test_a_dead_consumers_part_ends_and_the_others_go_on(kills: list[int]) -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        aqua = system(made, "aqua", *LENDS, failed=failed)
        whole = made.instances[NUM].kv.num_pages
        serve(made, aqua, CROWD, *[Kill(each, 0.05) for each in kills], linger_s=1.0)
        left = NUM - len(kills)
        assert bool(failed) == (not left)
        assert len(lent_stores(aqua)) == (NUM if left else 0)
        if not left:
            assert made.instances[NUM].kv.num_pages == whole
        elif len(kills) == 1:
            page_outs = [e for e in moved(made, "page out to lease") if e["start_s"] > 0.2]
            assert len({e["instance"] for e in page_outs}) == left


def test_a_part_is_of_some_devices() -> None:
    with bed() as made:
        lender, layout = made.instances[NUM], made.instances[0].layout
        assert lender.memory.part(range(NUM)) == lender.memory
        assert lender.memory.part(range(2, 4)).place == (hbm(0, 6), hbm(0, 7))
        with pytest.raises(UsageError, match=r"devices 3 to 4 of .*; valid: 0 to 3"):
            lender.memory.part(range(3, 5))

        async def story() -> None:
            whole = lender.kv.num_pages
            parts = [(range(i, i + 1), layout) for i in range(2)]
            first, second = await made.cluster.lend_parts(lender, 20 * layout.page_bytes, parts)
            rest = lender.kv.num_pages
            assert rest < whole
            request = made.request(20, 4)
            assert second.kv.grow(request, 20)
            made.cluster.reclaim(first)
            assert lender.kv.num_pages == rest
            with pytest.raises(RunError, match="with KV of 1 requests"):
                made.cluster.reclaim(second)
            second.kv.release(request)
            made.cluster.reclaim(second)
            assert lender.kv.num_pages == whole
            made.recorder.failed(request, "test")

        made.run(story())
        assert len([e for e in made.recorder.events if e["kind"] == "lease"]) == 1


def test_a_group_waits_for_its_slowest_device_alone() -> None:
    used: list[CostModel] = []
    costs: dict[float, Any] = defaultdict(object)
    change = beside_copies(1e12, lambda rivals: costs[rivals], used.append, lambda: None)
    both = hbm(0, 0), hbm(0, 1)
    change(both[0], 2e11)
    change(both[1], 2e11)  # as much on another one: no slower
    assert used == [costs[0.25]]
    change(both, 2e11)
    change(both[0], -2e11)  # the other one has as much as before
    assert used == [costs[0.25], costs[round(0.4 / 0.6, 6)]]
    change(both, -2e11)
    change(both[1], -2e11)
    assert used[2:] == [costs[0.25], costs[0.0]]


def test_consumers_of_two_models_share_a_lender(tmp_path: Path) -> None:
    deep = "workload.parts.deep"
    summary = run_here(
        tmp_path / "run", "+experiment=aqua_live_elastic", "engine=sim", "hardware=local_paced",
        "hardware.num_devices=4", "hardware.devices_per_node=4", "engine.num_kv_blocks=1024",
        "figure=null", "system.lender.model.tp=2", "model_set.specs.lender.tp=2",
        "+model@model_set.specs.deep=tiny-llama-deep", "model_set.cycle=[borrower,lender,deep]",
        f"+workload@{deep}=burstgpt", f"{deep}.num_requests=60", f"{deep}.scale.to_rate_per_s=null",
        f"{deep}.arrivals.kind=poisson", f"{deep}.arrivals.rate_per_s=4",
        f"{deep}.lengths.max_output_tokens=256",
        "system.pairs=[{consumers: [tiny-llama, tiny-llama-deep], lender: tiny-llama-wide}]",
    )  # fmt: skip
    assert summary["num_completed"] == 180
    table = pq.read_table(tmp_path / "run" / "events.parquet").to_pylist()
    moves = [event for event in table if event["kind"] == "kv_move"]
    fields = [json.loads(event["fields"]) for event in moves]
    parts = {
        (event["instance"], each["to"].partition(" of ")[2])
        for event, each in zip(moves, fields, strict=True)
        if each["purpose"] == "page out to lease"
    }
    assert parts == {("sim-0", "device 0"), ("sim-1", "device 1")}


def test_a_live_group_is_refused(tmp_path: Path) -> None:
    ended = answer([
        "+system=aqua", "+workload=burstgpt", "hardware.num_devices=4", "tracking=none",
        "hardware.devices_per_node=4", f"hydra.run.dir={tmp_path}", "engine=torch_paging",
        "+model@system.lender.model=tiny-llama-wide", "system.lender.model.tp=2",
        "system.pairs=[{consumers: [tiny-llama, tiny-llama], lender: tiny-llama-wide}]",
    ])  # fmt: skip
    told = "error: model.tp=2 with engine=torch is for instances that have one model for good"
    assert ended[0] == 2
    assert ended[1].startswith(told)


# Where they are


def placed(num_devices: int, pairs: str, tp: int = 4) -> list[Placement]:
    node = composed("+system=aqua", "+workload=burstgpt", f"system.pairs={pairs}").system
    config: Any = config_of(plain(node), Aqua, "system")
    wide = replace(spec(), name="wide", tp=tp)
    models = {"m": spec(), "w": wide}
    return Aqua.place(config, models, hardware(num_devices), Demand({"m": 1.0, "w": 1.0}))


def test_consumers_stand_beside_their_lender() -> None:
    found = placed(8, "[{consumers: [tiny-llama, tiny-llama, tiny-llama], lender: wide}]")
    assert [each.devices for each in found] == [range(1), range(1, 2), range(2, 3), range(3, 7)]


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        (
            "[{consumers: [tiny-llama, tiny-llama, tiny-llama], lender: wide}]",
            "3 consumers on 3 devices borrow of wide, which has tp=2; a device lends",
        ),
        ("[{consumers: [], lender: wide}]", r"consumer=None and consumers=\[\]; valid: either"),
        ("[{consumers: [tiny-llama], consumer: tiny-llama}]", "valid: either consumer: MODEL or"),
        ("[{consumers: [tiny-llama, opt], lender: wide}]", "model opt is unknown"),
    ],
)
def test_groups_that_cannot_be_are_refused(pairs: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        placed(8, pairs, tp=2)
