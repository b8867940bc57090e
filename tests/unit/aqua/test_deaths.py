"""What is left where a lender or a consumer dies, or both."""

from __future__ import annotations

from typing import Any

import pytest

from harness.running.testbed import Bed
from tests.aqua import Asked, Kill, moved, serve, system
from tests.unit.aqua.test_system import BURST, CROWD, LONG_CROWD, assert_all_done, bed

WHEN = pytest.mark.parametrize("at_s", [0.05, 0.15, 0.3])


@WHEN
def test_a_dead_lenders_paged_requests_are_computed_again(at_s: float) -> None:
    with bed() as made:
        aqua = system(made, "aqua")
        others = [Asked(0.01, 60, 400, "lender")]
        serve(made, aqua, CROWD + others, Kill(1, at_s))
        assert_all_done(made)
        assert any(record.num_preemptions for record in made.recorder.records.values())
        assert not moved_after(made, at_s + 0.11, "page out to lease")
        assert not aqua.pairs[0].consumer.instance.kv.held


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


@WHEN
def test_a_dead_consumers_lease_ends_and_its_requests_go_on(at_s: float) -> None:
    with bed() as made:
        aqua = system(made, "aqua")
        whole = made.instances[1].kv.num_pages
        serve(made, aqua, CROWD, Kill(0, at_s), linger_s=1.0)
        assert_all_done(made)
        assert made.instances[1].kv.num_pages == whole
        assert not made.instances[1].kv.held
        assert not aqua.pairs[0].lender.lent


def test_without_an_instance_requests_fail_with_a_reason() -> None:
    with bed() as made:
        failed: dict[int, str] = {}
        aqua = system(made, "aqua", failed=failed)
        serve(made, aqua, CROWD, Kill(0, 0.05), Kill(1, 0.06))
        assert failed
        assert set(failed.values()) == {"all instances of tiny-llama are lost"}


def moved_at(made: Bed, at_s: float) -> list[dict[str, Any]]:
    return [
        event
        for event in made.recorder.events
        if event["kind"] == "kv_move" and event["start_s"] < at_s < event["end_s"]
    ]


def moved_after(made: Bed, at_s: float, purpose: str) -> bool:
    return any(event["start_s"] > at_s for event in moved(made, purpose))
