"""A consumer whose shards have a lender each: what lies where, all or nothing, and what deaths and
reclaims of one lender leave. And the chain from profiles over the placer to such a run."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.configuration.resolvers import in_conf
from harness.errors import UsageError
from harness.placement import Elastic, Placement
from harness.running.testbed import Bed
from plots.aqua.producers import plateau
from systems.aqua.placement import groups_of
from systems.aqua.placer import __main__ as placer
from systems.aqua.profiler.profile import generator_profile, read_profile
from systems.aqua.system import Aqua
from tests.aqua import Asked, Kill, moved, placed_bed, serve, system
from tests.elastic import spec
from tests.running import ROOT, composed, hardware_profile, run_here

FOUR = replace(hardware_profile("local_paced"), num_devices=4, devices_per_node=4)
CROWD = [Asked(0.001 * i, 90 + 7 * i, 40 + 5 * (i % 4)) for i in range(24)]
BURST = [Asked(0.4, 60, 30, "lender") for _ in range(60)]
PLENTY, A_LITTLE = 2**24, 2**17


def words(first: int = PLENTY, second: int = PLENTY) -> list[str]:
    lenders = (
        f"{{model: wide, free_bytes: {first}}}, "
        f"{{model: audio, free_bytes: {second}, serves: false}}"
    )
    return [
        f"system.pairs=[{{consumer: tiny-llama, lenders: [{lenders}]}}]",
        "system.lender.every=null", "system.consumer.kv_share=0.0625",
        "system.informer.min_offer_bytes=1",
        "system.variants.paper.scheduler.fcfs_when_in_dram=never",
    ]  # fmt: skip


def bed() -> AbstractContextManager[Bed]:
    """A consumer on two devices, and two lenders on one each."""
    consumer = replace(spec(), tp=2)
    lenders = [replace(consumer, name=name, tp=1) for name in ("wide", "audio")]
    elastic = Elastic(page_layers=None)
    placements = [Placement(devices=range(2), model=consumer.name, elastic=elastic)] + [
        Placement(devices=range(k, k + 1), model=one.name, own=one, elastic=elastic)
        for k, one in enumerate(lenders, start=2)
    ]
    return placed_bed(consumer, FOUR, placements)


def all_completed(made: Bed) -> bool:
    return {record.status for record in made.recorder.records.values()} == {"completed"}


def held_bytes(aqua: Aqua) -> dict[str, int]:
    """What is allocated in each lender's leases."""
    coordinator: Any = aqua._leases.coordinator
    leases = coordinator._coordinator.leases().values()
    return {lease["holder"]: lease["allocated_bytes"] for lease in leases}


def test_a_prompts_kv_lies_with_both_lenders() -> None:
    with bed() as made:
        aqua = system(made, "aqua", *words())
        _, first, second = (instance.name for instance in made.instances)
        serve(made, aqua, CROWD)
        assert all_completed(made)
        out = moved(made, "page out to lease")
        assert out
        for event in out:
            assert f"lent by {first} " in event["fields"]["to"]
            assert f"lent by {second} " in event["fields"]["to"]
        assert not moved(made, "page out to DRAM")
        assert set(held_bytes(aqua).values()) == {0}
        lent = [event for event in made.recorder.events if event["kind"] == "lease"]
        assert {event["instance"] for event in lent} == {first, second}


@pytest.mark.parametrize("small", [0, 1])
def test_both_have_room_or_none_is_used(small: int) -> None:
    """The other lender's memory is not allocated for a prompt for which one has no room."""
    sizes = [PLENTY, PLENTY]
    sizes[small] = A_LITTLE
    with bed() as made:
        aqua = system(made, "aqua", *words(*sizes))
        watched: list[set[int]] = []

        async def watch() -> None:
            while True:
                await made.loop.sleep(0.01)
                watched.append(set(held_bytes(aqua).values()))

        serve(made, aqua, CROWD, beside=watch)
        assert all_completed(made)
        assert moved(made, "page out to lease")
        assert moved(made, "page out to DRAM")
        assert all(len(held) == 1 for held in watched[1:])
        assert max(max(held) for held in watched[1:]) <= A_LITTLE


def test_one_lenders_reclaim_empties_the_leases_of_both() -> None:
    """The lender that serves has a burst. Its memory comes home; the other's stays lent, empty,
    until both lend again."""
    with bed() as made:
        aqua = system(made, "aqua", *words(), "system.max_num_seqs=16")
        _, first, second = (instance.name for instance in made.instances)
        serve(made, aqua, [Asked(0.001 * i, 90, 350) for i in range(24)] + BURST)
        assert all_completed(made)
        assert moved(made, "migrate to DRAM")
        assert moved(made, "migrate to lease")
        leases = [event for event in made.recorder.events if event["kind"] == "lease"]
        assert [event["instance"] for event in leases].count(second) == 1
        assert [event["instance"] for event in leases].count(first) >= 2
        home, again = [event for event in leases if event["instance"] == first][:2]
        for event in made.recorder.events:
            if event["kind"] == "kv_move" and home["end_s"] < event["start_s"] < again["start_s"]:
                assert "lent by" not in event["instance"] + event["fields"]["to"]


@pytest.mark.parametrize("dead", [1, 2])
def test_a_dead_lender_takes_its_shards_and_the_other_has_its_memory_back(dead: int) -> None:
    with bed() as made:
        aqua = system(made, "aqua", *words())
        alive = made.instances[3 - dead].name
        serve(made, aqua, [*CROWD, Asked(0.01, 60, 400)], Kill(dead, 0.1))
        assert all_completed(made)
        assert any(record.num_preemptions for record in made.recorder.records.values())
        assert not [e for e in moved(made, "page out to lease") if e["start_s"] > 0.1 + 0.11]
        assert moved(made, "page out to DRAM")
        assert held_bytes(aqua) == {alive: 0}


def test_a_dead_consumer_leaves_both_lenders_their_memory() -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        aqua = system(made, "aqua", *words(), failed=failed)
        whole = [instance.kv.num_pages for instance in made.instances[1:]]
        serve(made, aqua, CROWD, Kill(0, 0.05), linger_s=1.0)
        assert failed
        assert [instance.kv.num_pages for instance in made.instances[1:]] == whole


def config(pairs: str) -> Any:
    node = composed("+system=aqua", "+workload=burstgpt", f"system.pairs={pairs}").system
    return config_of(plain(node), Aqua, "system")


@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ("[{consumer: a, lenders: []}]", "valid: lenders:"),
        ("[{consumer: a, lender: b, lenders: [{model: b, free_bytes: 1}]}]", "no lender"),
        ("[{consumers: [a, a], lenders: [{model: b, free_bytes: 1}]}]", "valid: lenders:"),
        ("[{consumer: a, lenders: [{model: b, free_bytes: 0}]}]", "free_bytes=0 must be"),
    ],
)
def test_lenders_that_cannot_be(pairs: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        config(pairs)


@pytest.mark.parametrize(
    ("lenders", "complaint"),
    [
        ("{model: audio, free_bytes: 1}", "model audio is unknown"),
        ("{model: audio, free_bytes: 1, serves: false}", "on 2 devices borrows of audio on 1"),
    ],
)
def test_lenders_that_the_run_does_not_have(lenders: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        groups_of(
            config(f"[{{consumer: tiny-llama, lenders: [{lenders}]}}]"),
            {"tiny-llama": replace(spec(), tp=2)},
        )


PROFILES = ROOT / "conf/system/aqua/profiles"


@pytest.mark.parametrize("engine", ["eager_2024", "vllm_v1"])
def test_the_runs_pairs_are_what_the_placer_makes_of_the_profiles(
    engine: str, tmp_path: Path
) -> None:
    """The profiler's files -> the placer's command -> what the experiment reads."""
    llms = ("llama3.1-70b-tp2-h100x8-sharegpt", "llama3.1-8b-tp1-h100x8-sharegpt")
    files = [str(PROFILES / engine / f"{name}.json") for name in llms]
    out = tmp_path / "pairs.json"
    size = ["--servers", "1", "--gpus-per-server", "8", "--out", str(out)]
    assert placer.main([*files, str(PROFILES / "generators" / "audiogen.json"), *size]) == 0
    made = json.loads(out.read_text())["pairs"]
    words = ("+experiment=aqua_end_to_end", f"engine.profile={engine}")
    assert plain(composed(*words).system)["pairs"] == made
    (pair,) = made
    assert [lender["model"] for lender in pair["lenders"]] == ["llama3.1-8b", "audiogen"]
    for lender, file in zip(pair["lenders"], [files[1], None], strict=True):
        path = Path(file) if file else PROFILES / "generators" / "audiogen.json"
        assert lender["free_bytes"] == read_profile(path).memory_balance


def test_a_placement_that_is_not_there_is_refused() -> None:
    there = "files there: eager_2024/end_to_end, vllm_v1/end_to_end; or give the value yourself"
    with pytest.raises(UsageError, match=rf"^conf/.*/nowhere\.json is missing; {there}"):
        in_conf("system/aqua/placements/eager_2024/nowhere", "pairs")
    with pytest.raises(
        UsageError, match=r"/sdxl\.json has no stable_rate_per_s, or null; .*/sdxl, "
    ):
        in_conf("system/aqua/profiles/generators/sdxl", "stable_rate_per_s")


@pytest.mark.parametrize("path", sorted((PROFILES / "generators").glob("*.json")), ids=str)
def test_a_generators_file_is_what_its_sweep_finds(path: Path) -> None:
    found = read_profile(path)
    made = generator_profile(path.stem, "a100", plateau(path.stem), 10_000_000_000)
    assert (found.memory_balance, found.peak_batch) == (made.memory_balance, made.peak_batch)


def test_both_lenders_of_the_placer_lend_in_the_run(tmp_path: Path) -> None:
    """Sections 4, 5 and 9.3 in one run: who lends is who the placer chose, and both do."""
    parts = "workload.parts"
    run = tmp_path / "run"
    summary = run_here(
        run, "+experiment=aqua_end_to_end", "hydra.mode=RUN", f"{parts}.llama70b.num_requests=60",
        f"{parts}.llama70b.arrivals.rate_per_s=0.6", f"{parts}.llama8b.num_requests=40",
    )  # fmt: skip
    out = summary["kv_moves"]["page out to lease"]["bytes"]
    assert out > 0
    rows = pq.read_table(run / "events.parquet").to_pylist()
    lent = {row["instance"]: json.loads(row["fields"]) for row in rows if row["kind"] == "lease"}
    (pair,) = in_conf("system/aqua/placements/eager_2024/end_to_end", "pairs")
    assert list(lent) == ["sim-1", "sim-2"]  # the consumer is sim-0, its lenders stand behind it
    for event, lender in zip(lent.values(), pair["lenders"], strict=True):
        assert 0.99 * lender["free_bytes"] < event["bytes"] <= lender["free_bytes"]
    moves = [json.loads(row["fields"]) for row in rows if row["kind"] == "kv_move"]
    there = [move for move in moves if move["purpose"] == "page out to lease" and move["bytes"]]
    assert all("lent by sim-1 " in m["to"] and "lent by sim-2 " in m["to"] for m in there)
    assert sum(move["bytes"] for move in there) == out
