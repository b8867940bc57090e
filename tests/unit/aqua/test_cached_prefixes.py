"""Prefill caching on devices: who comes later has the prefix's KV copied, and nothing is lost."""

from __future__ import annotations

import pytest

from tests.aqua import Asked, Kill, moved, moved_bytes, serve, system, transferred_bytes
from tests.unit.aqua.test_system import BURST, INTO, OUT, assert_all_done, bed

CACHING = "system.consumer.prefill_caching=true"
PREFIX = ((7, 100),)  # six blocks of 16 tokens and a quarter
FIRST = [Asked(0.0, 140, 30, "consumer", PREFIX)]
LATER = [Asked(1.0 + 0.001 * i, 110 + 9 * i, 40, "consumer", PREFIX) for i in range(12)]
OTHER = [Asked(1.0, 120, 40, "consumer")]
BLOCK_BYTES = 16 * 4 * 2 * 4 * 32 * 4  # tokens, layers, K and V, heads, dims, float32


@pytest.mark.parametrize("place", ["lease", "DRAM"])
def test_a_hit_is_copied_and_not_computed(place: str) -> None:
    name = "aqua" if place == "lease" else "vllm_cfs"
    words = [] if place == "lease" else ["system.copies=gathered"]
    with bed() as made:
        serve(made, system(made, name, CACHING, *words), FIRST + LATER + OTHER)
        assert_all_done(made)
        cached = [request.cached_tokens for request in made.requests]
        assert cached == [0, 100, None, *[100] * 11]
        assert transferred_bytes(made, f"prefix out to {place}") == 7 * BLOCK_BYTES
        assert transferred_bytes(made, f"prefix in from {place}") == 12 * 7 * BLOCK_BYTES
        assert not made.instances[0].kv.held
    first_s = {}
    for words in ([CACHING], []):
        with bed() as made:
            serve(made, system(made, "aqua", *words), FIRST + LATER[:1])
            first_s[bool(words)] = made.recorder.records[1].token_times_s()[0]
    assert first_s[True] < first_s[False]


def test_prefixes_are_copied_as_system_copies_says() -> None:
    """Block by block each copy takes the time to issue it, gathered ones pass a staging tensor."""
    issue_s, prefixes = 2e-4, (7 * BLOCK_BYTES, 12 * 7 * BLOCK_BYTES)
    for copies in ("gathered", "by_block"):
        with bed() as made:
            words = (CACHING, f"system.copies={copies}", f"system.copy_issue_s={issue_s}")
            serve(made, system(made, "vllm_cfs", *words), FIRST + LATER)
            assert_all_done(made)
            staged = [transferred_bytes(made, what) for what in ("gather", "scatter")]
            paged = [moved_bytes(made, *OUT), moved_bytes(made, *INTO)]
            took_s = [
                event["end_s"] - event["start_s"] for event in made.recorder.events
                if event["fields"].get("purpose") == "prefix in from DRAM"
            ]  # fmt: skip
        messages = 7 * 4 * 2  # blocks, layers, keys and values
        every = [sum(each) for each in zip(paged, prefixes, strict=True)]
        assert staged == (every if copies == "gathered" else [0, 0])
        assert len(took_s) == 12
        assert (min(took_s) >= messages * issue_s) == (copies == "by_block")


def test_a_hit_comes_before_later_misses_when_memory_is_short() -> None:
    """The 100 tokens of the hit that were copied are no service: nothing of it was computed."""
    crowd = [Asked(1.0 + 0.001 * i, 120, 60, "consumer") for i in range(10)]
    hit = Asked(1.05, 140, 10, "consumer", PREFIX)
    misses = [Asked(1.051 + 0.001 * i, 140, 10, "consumer") for i in range(4)]
    with bed() as made:
        serve(made, system(made, "aqua", CACHING), [*FIRST, *crowd, hit, *misses])
        assert_all_done(made)
        assert moved(made, "page out to lease")  # they share the device in turns
        asked = made.requests[-5:]
        assert [each.cached_tokens for each in asked] == [100, None, None, None, None]
        first_s = [made.recorder.records[r.request_id].token_times_s()[0] for r in asked]
        assert first_s[0] == min(first_s)


def test_a_prompt_that_is_the_prefix_computes_its_last_token() -> None:
    with bed() as made:
        aqua = system(made, "aqua", CACHING)
        serve(made, aqua, [*FIRST, Asked(1.0, 100, 5, "consumer", PREFIX)])
        assert_all_done(made)
        assert made.requests[1].cached_tokens == 99


def test_a_copy_goes_to_dram_when_its_lender_reclaims_and_is_used_there() -> None:
    late = [Asked(3.0, 150, 10, "consumer", PREFIX)]
    asked = FIRST + [Asked(0.4 + each.at_s, *each[1:]) for each in BURST]
    with bed() as made:
        aqua = system(made, "aqua", CACHING, "system.max_num_seqs=8")
        keeping = [Asked(0.05 * i, 90, 300, "consumer") for i in range(3)]  # iterations to look at
        serve(made, aqua, asked + keeping, once=lambda: made.loop.now > 1.0, later=late)
        assert_all_done(made)
        moved = [
            e["fields"]["to"] for e in made.recorder.events
            if e["kind"] == "kv_move" and e["fields"]["requests"] == [-1]
        ]  # fmt: skip
        assert moved
        assert late[0].shared
        assert made.requests[-1].cached_tokens == 100


@pytest.mark.parametrize("at_s", [0.5, 1.002])
@pytest.mark.parametrize("victim", [0, 1])
def test_whoever_dies_all_end(victim: int, at_s: float) -> None:
    with bed() as made:
        aqua = system(made, "aqua", CACHING)
        serve(made, aqua, FIRST + LATER + OTHER, Kill(victim, at_s), linger_s=1.0)
        assert_all_done(made)
        for instance in made.instances:
            assert instance.lost is not None or not instance.kv.held


def test_with_streaming_it_is_refused() -> None:
    with bed() as made, pytest.raises(ValueError, match="prefill_caching=true is of paged prompts"):
        system(made, "flexgen", CACHING)
