"""The system on simulated devices: who runs, where paged KV goes, and what deaths leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.configuration.config import settings as config_of
from harness.configuration.options import plain
from harness.errors import UsageError
from harness.placement import Demand
from harness.records.device_events import summarise_events
from harness.running.testbed import Bed
from systems.aqua.profiler.profile import MemoryProfile, write_profile
from systems.aqua.system import Aqua
from tests.aqua import Asked, lent_stores, moved, moved_bytes, serve, system, transferred_bytes
from tests.elastic import check, hardware, private, spec
from tests.running import composed, hardware_profile

OUT = ("page out to lease", "page out to DRAM")
INTO = ("page in from lease", "page in from DRAM")
NEVER = "system.variants.paper.scheduler.fcfs_when_in_dram=never"
DIRTY = "system.variants.paper.scheduler.dirty_only=true"
COPIES = pytest.mark.parametrize("copies", [(), (DIRTY,)], ids=["", "kept"])
CROWD = [Asked(0.001 * i, 90 + 7 * i, 40 + 5 * (i % 4), "consumer") for i in range(12)]


LONG_CROWD = [Asked(0.001 * i, 90, 350, "consumer") for i in range(12)]
BURST = [Asked(0.4, 60, 30, "lender") for _ in range(60)]


@contextmanager
def bed(kv_blocks: int = 128) -> Iterator[Bed]:
    with private("sim", 2, kv_blocks=kv_blocks, page_layers=None, on=PACED) as made:
        yield made
        check(made)


PACED = hardware_profile("local_paced")


def assert_all_done(made: Bed) -> None:
    assert {record.status for record in made.recorder.records.values()} == {"completed"}


def assert_empty(made: Bed, aqua: Aqua) -> None:
    """Nothing of any request is left anywhere."""
    swap = aqua.pairs[0].consumer.swap
    assert not list(swap.tensors)
    assert not swap._dram.kv.held
    assert not any(store.kv.held for store in lent_stores(aqua))
    assert not any(instance.kv.held for instance in made.instances)
    assert not made.cluster.directory.wheres


@pytest.mark.parametrize(
    ("words", "places"),
    [
        (["aqua"], {"lease", "DRAM"}),
        (["vllm_cfs", "system.copies=gathered"], {"DRAM"}),  # no neighbour
        (["aqua", "system.lender.free_share=0.2", NEVER], {"lease", "DRAM"}),
    ],
)
def test_a_crowd_takes_turns_and_what_leaves_comes_back(words: list[str], places: set[str]) -> None:
    with bed() as made:
        aqua = system(made, *words)
        serve(made, aqua, CROWD)
        assert_all_done(made)
        went = {place for place in ("lease", "DRAM") if moved(made, f"page out to {place}")}
        assert went == places
        assert moved_bytes(made, *OUT) == moved_bytes(made, *INTO)
        assert_empty(made, aqua)


def test_block_by_block_takes_the_time_to_issue_each_copy() -> None:
    seconds, issue_s = {}, 2e-4
    for copies in ("gathered", "by_block"):
        with bed() as made:
            words = (f"system.copies={copies}", f"system.copy_issue_s={issue_s}")
            serve(made, system(made, "vllm_cfs", *words), CROWD)
            out = moved(made, "page out to DRAM")
            seconds[copies] = sum(e["end_s"] - e["start_s"] for e in out) / moved_bytes(made, *OUT)
    messages_per_byte = 1 / (2 * 4 * 32 * 16 * 4 / 2)  # K or V of a layer: 4 heads, 32, 16, fp32
    more = seconds["by_block"] - seconds["gathered"]
    slower = issue_s * messages_per_byte - 1 / PACED.pcie_bytes_per_s
    assert more == pytest.approx(slower, rel=0.1)
    assert slower > 0


def test_gathered_copies_are_staged_on_the_device_and_others_are_not() -> None:
    """§6: blocks are collected in a staging tensor, which reads and writes each byte once more."""
    for copies in ("gathered", "by_block"):
        with bed() as made:
            serve(made, system(made, "vllm_cfs", f"system.copies={copies}"), CROWD)
            staged = [transferred_bytes(made, what) for what in ("gather", "scatter")]
            paged = [moved_bytes(made, *OUT), moved_bytes(made, *INTO)]
        assert staged == (paged if copies == "gathered" else [0, 0])


@pytest.mark.parametrize("more", [(), (DIRTY,), ("system.variant=artifact",)])
@pytest.mark.parametrize("pages", [4, 16, 40])
def test_nobody_is_preempted_where_swap_space_is_full(pages: int, more: tuple[str, ...]) -> None:
    """A few are computed again, as those on the device outgrow it."""
    with bed() as made:
        size = pages * made.instances[0].page_bytes
        aqua = system(made, "vllm_cfs", f"system.dram_bytes={size}", *more)
        serve(made, aqua, CROWD)
        assert_all_done(made)
        preemptions = sum(record.num_preemptions for record in made.recorder.records.values())
        assert 1 <= preemptions < len(CROWD)
        assert_empty(made, aqua)


def test_a_lender_that_lends_nothing_waits_for_requests_alone() -> None:
    """The public code looks every 4 s, which is over here while it is idle."""
    with bed() as made:
        serve(made, system(made, "vllm_cfs", "system.variant=artifact"), [Asked(4.5, 9, 9)])
        assert_all_done(made)


def test_without_contention_nothing_is_paged_and_order_is_of_arrival() -> None:
    with bed() as made:
        serve(made, system(made, "aqua"), CROWD[:4])
        assert not [event for event in made.recorder.events if event["kind"] == "kv_move"]
        firsts = [record.token_times_s()[0] for record in made.recorder.records.values()]
        assert firsts == sorted(firsts)


def test_fair_slices_give_first_tokens_sooner_than_waiting_in_line() -> None:
    """What the paper is for: against the same consumer that always serves in order of arrival."""
    worst = {}
    for name, share in (("aqua", 0.5), ("vllm", 0.0)):
        with bed() as made:
            aqua = system(made, "aqua", f"system.lender.free_share={share}")
            serve(made, aqua, LONG_CROWD)
            records = made.recorder.records.values()
            worst[name] = max(r.token_times_s()[0] for r in records)
    assert worst["aqua"] < 0.5 * worst["vllm"]


@COPIES
def test_a_busy_lender_takes_its_memory_back_and_lends_it_again(copies: tuple[str, ...]) -> None:
    """Fig. 12: tensors go to DRAM and come home, and the lender's pool is whole in between."""
    with bed() as made:
        aqua = system(made, "aqua", "system.max_num_seqs=16", *copies)
        whole = made.instances[1].kv.num_pages
        serve(made, aqua, LONG_CROWD + BURST)
        assert_all_done(made)
        leases = [e for e in made.recorder.events if e["kind"] == "lease"]
        assert len(leases) >= 2
        first, second = leases[:2]
        away, back = moved(made, "migrate to DRAM"), moved(made, "migrate to lease")
        assert away
        assert back
        assert 0.4 < away[0]["start_s"] < away[-1]["end_s"] <= first["end_s"] < second["start_s"]
        assert back[-1]["start_s"] > second["start_s"]
        lent = sum(store.kv.num_pages for store in lent_stores(aqua))
        assert made.instances[1].kv.num_pages + lent == whole
        assert_empty(made, aqua)


@pytest.mark.parametrize(("stable_rate", "reclaims"), [(2.0, True), (50.0, False)])
def test_a_rate_above_the_stable_one_reclaims_without_a_queue(
    stable_rate: float, reclaims: bool
) -> None:
    """§9.4: the rate that the engine reports, though it serves each request at once."""
    with bed() as made:
        aqua = system(made, "aqua", f"system.lender.stable_rate_per_s={stable_rate}")
        serve(made, aqua, [Asked(0.2 + 0.1 * i, 20, 10, "lender") for i in range(40)])
        ended = [e for e in made.recorder.events if e["kind"] == "lease"]
        assert any(e["end_s"] < 4.0 for e in ended) == reclaims


def test_a_lender_that_cannot_serve_a_request_reclaims() -> None:
    with bed(kv_blocks=64) as made:
        aqua = system(made, "aqua", "system.lender.free_share=0.9")
        serve(made, aqua, [Asked(0.1, 300, 20, "lender")])  # 20 blocks, of which 6 are not lent
        assert_all_done(made)
        assert [e for e in made.recorder.events if e["kind"] == "lease"]


@given(
    asked=st.lists(
        st.builds(
            Asked, st.floats(0, 0.5), st.integers(1, 400), st.integers(1, 100),
            st.sampled_from(["any", "consumer", "lender"]),
        ),
        min_size=1, max_size=25,
    ),
    name=st.sampled_from(["aqua", "vllm_cfs"]),
    variant=st.sampled_from(["paper", "artifact"]),
    free_share=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    dirty=st.booleans(),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_nobody_starves_and_no_block_is_lost(
    asked: list[Asked],
    name: str,
    variant: str,
    free_share: float,
    dirty: bool,
) -> None:
    with bed() as made:
        gathered = ("system.copies=gathered", f"system.lender.free_share={free_share}")
        only = f"system.variants.{variant}.scheduler.dirty_only={dirty}"
        aqua = system(made, name, f"system.variant={variant}", only, *gathered)
        serve(made, aqua, asked)
        assert_all_done(made)
        out, into = moved_bytes(made, *OUT), moved_bytes(made, *INTO)
        assert out <= into if dirty else out == into
        assert_empty(made, aqua)


# Bad input


def test_a_request_that_never_fits_fails_with_the_reason() -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        serve(made, system(made, "aqua", failed=failed), [Asked(0, 1000, 100), Asked(0.1, 9, 9)])
        assert failed == {0: "needs KV for 1099 tokens; a device has room for 1008"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("system.variants.paper.scheduler.slice_iterations=0", r"slice_iterations=0 \(k\)"),
        ("system.informer.every_iterations=0", r"every_iterations=0 \(n\)"),
        ("system.swap_space=mars", "swap_space=mars is unknown; choose one of neighbour, dram"),
        ("system.copies=some", "copies=some is unknown"),
        ("system.variant=code", "variant=code is unknown; choose one of paper, artifact"),
        ("system.lender.every=1", "every=1 must be at least 2"),
        ("system.lender.free_share=1", "free_share=1 must be"),
        ("system.consumer.kv_share=0", "kv_share=0 must be"),
        ("system.coordinator.port=70000", "port=70000; valid"),
        ("system.coordinator.heartbeat_timeout_s=0", "heartbeat_timeout_s=0; valid"),
    ],
)
def test_bad_values_are_named(override: str, words: str) -> None:
    node = composed("+system=aqua", "+workload=burstgpt", override).system
    with pytest.raises(UsageError, match=words):
        config_of(plain(node), Aqua, "system")


def test_neighbours_are_of_one_node() -> None:
    config = config_of(plain(composed("+system=aqua", "+workload=burstgpt").system), Aqua, "system")
    with pytest.raises(UsageError, match="need 2 devices of one node"):
        Aqua.place(config, {"m": spec()}, hardware(1), Demand({}))
    placed = Aqua.place(config, {"m": spec()}, hardware(2), Demand({}))
    assert [each.devices for each in placed] == [range(1), range(1, 2)]


def test_the_summary_counts_what_was_paged_and_lent() -> None:
    with bed() as made:
        serve(made, system(made, "aqua"), CROWD)
        summary = summarise_events(made.recorder.events, made.loop.now)
        out = summary["kv_moves"]["page out to lease"]
        moves = moved(made, "page out to lease")
        assert out["bytes"] == moved_bytes(made, "page out to lease")
        assert (out["copies"], out["requests"]) == (
            len(moves), sum(len(e["fields"]["requests"]) for e in moves)
        )  # fmt: skip
        spent_s = sum(e["end_s"] - e["start_s"] for e in moves)  # one at a time
        assert out["seconds"] == pytest.approx(spent_s)
        lent = summary["lease_seconds"]
        assert lent["byte_seconds"] == pytest.approx(
            sum(
                (e["end_s"] - e["start_s"]) * e["fields"]["bytes"]
                for e in made.recorder.events
                if e["kind"] == "lease"
            )
        )
        assert lent["leases"] >= 1


def test_a_profile_says_what_the_lender_lends(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with bed() as made:
        block = made.instances[1].page_bytes
        found = MemoryProfile(
            model="tiny-llama", hardware="local_paced", shards=1, role="producer",
            memory_balance=20 * block, free_bytes=20 * block, stable_rate_per_s=2.0,
        )  # fmt: skip
        write_profile(path, found)
        aqua = system(made, "aqua", f"system.lender.profile={path}")
        serve(made, aqua, CROWD[:2], linger_s=0.1)
        assert [store.kv.num_pages for store in lent_stores(aqua)] == [20]
    write_profile(path, replace(found, model="other"))
    with bed() as made, pytest.raises(UsageError, match="is of other, a producer"):
        system(made, "aqua", f"system.lender.profile={path}")
