"""What is left where a lender or a consumer dies, or both."""

from __future__ import annotations

from typing import Any

import pytest

from harness.running.testbed import Bed
from systems.aqua.system import Aqua
from tests.aqua import Asked, Kill, moved, serve, system
from tests.unit.aqua.test_system import BURST, COPIES, CROWD, LONG_CROWD, assert_all_done, bed

WHEN = pytest.mark.parametrize("at_s", [0.05, 0.15, 0.3])


@COPIES
@WHEN
def test_a_dead_lenders_paged_requests_are_computed_again(
    at_s: float, copies: tuple[str, ...]
) -> None:
    with bed() as made:
        aqua = system(made, "aqua", *copies)
        others = [Asked(0.01, 60, 400, "lender")]
        serve(made, aqua, CROWD + others, Kill(1, at_s), linger_s=1.0)
        assert_all_done(made)
        assert any(record.num_preemptions for record in made.recorder.records.values())
        assert not moved_after(made, at_s + 0.11, "page out to lease")
        assert_empty_of(made, aqua, made.instances[0])


@pytest.mark.parametrize("dies", ["migrate to DRAM", "migrate to lease"])
def test_a_lender_that_dies_in_the_middle_of_a_migration(dies: str) -> None:
    whole: list[dict[str, Any]] = []
    for kill in (False, True):
        with bed() as made:
            aqua = system(made, "aqua", "system.max_num_seqs=16")
            middle = [Kill(1, (e["start_s"] + e["end_s"]) / 2) for e in whole]
            serve(made, aqua, LONG_CROWD + BURST, *middle)
            assert_all_done(made)
            if kill:
                broken = moved_at(made, middle[0].at_s)
                assert [e["fields"]["purpose"] for e in broken] == [dies]
                assert not aqua.pairs[0].consumer.swap.in_dram()
            else:
                whole = moved(made, dies)[:1]


@COPIES
@WHEN
def test_a_dead_consumers_lease_ends_and_its_requests_go_on(
    at_s: float, copies: tuple[str, ...]
) -> None:
    with bed() as made:
        aqua = system(made, "aqua", *copies)
        whole = made.instances[1].kv.num_pages
        others = [Asked(0.01, 60, 400, "lender")]
        serve(made, aqua, CROWD + others, Kill(0, at_s), linger_s=1.0)
        assert_all_done(made)
        assert made.instances[1].kv.num_pages == whole
        assert not aqua.pairs[0].lender.lent
        assert_empty_of(made, aqua, made.instances[1])


def test_without_an_instance_requests_fail_with_a_reason() -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        aqua = system(made, "aqua", failed=failed)
        serve(made, aqua, CROWD, Kill(0, 0.05), Kill(1, 0.06))
        assert failed
        assert set(failed.values()) == {"all instances of tiny-llama are lost"}


def assert_empty_of(made: Bed, aqua: Aqua, left: Any) -> None:
    """Nothing of any request is left, on the instance `left` and in swap space."""
    assert not left.kv.held
    assert not list(aqua.pairs[0].consumer.swap.tensors)
    assert not made.cluster.directory.wheres


def moved_at(made: Bed, at_s: float) -> list[dict[str, Any]]:
    return [
        event
        for event in made.recorder.events
        if event["kind"] == "kv_move" and event["start_s"] < at_s < event["end_s"]
    ]


def moved_after(made: Bed, at_s: float, purpose: str) -> bool:
    return any(event["start_s"] > at_s for event in moved(made, purpose))
