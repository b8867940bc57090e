"""vLLM's KV swap and parameter swap, simulated: who goes, who returns, what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.cost.model import CostModel
from harness.cost.streamed import BUFFERED_LAYERS, StreamedCost, streamed_layers
from harness.errors import UsageError
from harness.request import Request
from systems.baselines.swap import SwapConfig, lacking_blocks
from tests.elastic import check, hardware, private, spec
from tests.swap import serve, swaps

BLOCK_BYTES = 16 * spec().kv_bytes_per_token
ROOMY = 2**24


def config(requests: int | None = 1, num_bytes: int = 4 * BLOCK_BYTES) -> SwapConfig:
    return SwapConfig(requests=requests, bytes=num_bytes, host_bytes=ROOMY)


def test_what_lacks_a_block_for_its_next_token() -> None:
    full = Request(0, 0.0, "m", 16, 9)
    roomy = Request(1, 0.0, "m", 20, 9)
    full.generated_tokens, full.computed_tokens = 1, 16
    roomy.generated_tokens, roomy.computed_tokens = 1, 20
    assert lacking_blocks([full, roomy], {0: 1, 1: 2}, 16) == 1


def test_the_newest_goes_out_and_comes_back() -> None:
    with private("sim", 1, kv_blocks=10) as bed:
        requests = serve(bed, [(60, 60), (60, 60)], config())
        moved = swaps(bed)
        assert moved["out"][:1] == [requests[1].request_id]
        assert moved["in"] == moved["out"]
        assert not any(r.num_preemptions for r in bed.recorder.records.values())
        check(bed)


def test_at_most_so_many_are_out_and_the_others_are_computed_again() -> None:
    lengths = [(30, 90)] * 5
    recomputed = {}
    for limit in (1, 4):
        with private("sim", 1, kv_blocks=12) as bed:
            serve(bed, lengths, config(limit))
            recomputed[limit] = sum(r.num_preemptions for r in bed.recorder.records.values())
            assert swaps(bed)["out"]
    assert recomputed[1] > recomputed[4]


def test_a_waiting_request_is_made_room_for() -> None:
    """Its first token does not wait for the end of the ones that run."""
    first_s = {}
    for num_bytes in (BLOCK_BYTES, 40 * BLOCK_BYTES):
        with private("sim", 1, kv_blocks=10) as bed:
            requests = serve(bed, [(60, 60), (60, 20), (60, 20)], config(None, num_bytes))
            record = bed.recorder.records[requests[2].request_id]
            first_s[num_bytes] = record.token_times_s()[0]
    assert first_s[40 * BLOCK_BYTES] < first_s[BLOCK_BYTES]


def test_as_many_go_as_a_waiting_request_needs() -> None:
    """Two of 30 tokens for one of 140, and it does not wait for their ends."""
    with private("sim", 1, kv_blocks=10) as bed:
        requests = serve(bed, [(30, 60), (30, 60), (140, 5)], config(None, 40 * BLOCK_BYTES))
        assert swaps(bed)["out"][:2] == [requests[1].request_id, requests[0].request_id]
        records = bed.recorder.records
        large, small = (records[requests[k].request_id].token_times_s() for k in (2, 0))
        assert large[0] < small[-1]


@pytest.mark.parametrize(("limit", "beside"), [(1, False), (None, True)])
def test_what_a_swap_frees_is_for_waiting_requests_where_bytes_are_the_limit(
    limit: int | None, beside: bool
) -> None:
    """The third makes the second go; the last fits beside. vLLM admits none while one is out."""
    lengths = [(60, 60), (60, 60), (48, 30), (20, 2)]
    with private("sim", 1, kv_blocks=10) as bed:
        requests = serve(bed, lengths, config(limit, 40 * BLOCK_BYTES))
        moves = [event for event in bed.recorder.events if event["kind"] == "kv_move"]
        back_s = min(m["end_s"] for m in moves if m["fields"]["purpose"] == "swap in")
        first_s = bed.recorder.records[requests[3].request_id].token_times_s()[0]
        assert (first_s < back_s) == beside


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=8),
    limit=st.sampled_from([None, 1, 3]),
    blocks=st.integers(10, 20),
)
def test_all_end_and_nothing_is_left(
    lengths: list[tuple[int, int]], limit: int | None, blocks: int
) -> None:
    with private("sim", 1, kv_blocks=blocks) as bed:
        serve(bed, lengths, config(limit, 8 * BLOCK_BYTES))
        moved = swaps(bed)
        assert sorted(moved["in"]) == sorted(moved["out"])
        assert not bed.instances[0].kv.held
        check(bed)


def test_an_iteration_takes_its_compute_or_its_copies() -> None:
    whole = CostModel(spec(), hardware())
    step_s, growth_s = whole.decode_step(4, 400)
    assert StreamedCost(whole, step_s / 2).decode_step(4, 400) == (step_s, growth_s)
    assert StreamedCost(whole, step_s * 2).decode_step(4, 400) == (step_s * 2, 0.0)
    mixed_s = whole.mixed_step([(0, 64)], 4, 400)
    assert StreamedCost(whole, mixed_s / 2).mixed_step([(0, 64)], 4, 400) == mixed_s
    assert StreamedCost(whole, mixed_s * 2).mixed_step([(0, 64)], 4, 400) == mixed_s * 2


def test_layers_pass_through_a_buffer() -> None:
    deep = replace(spec(), num_layers=8)
    assert streamed_layers(3 * deep.layer_bytes - 1, deep.layer_bytes, 8) == 3 + BUFFERED_LAYERS
    with pytest.raises(UsageError, match="more than streaming the model's 8 layers frees"):
        streamed_layers(7 * deep.layer_bytes, deep.layer_bytes, 8)
