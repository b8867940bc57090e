"""Decisions of Algorithm 2 on plain data."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from harness.device.block_pool import BlockPool
from harness.request import Request
from systems.aegaeon.decode import DecodeBatch, fits, grouped
from systems.aegaeon.variants import by_model_order, repacked

KV = {"a": BlockPool(num_blocks=12, block_tokens=16), "b": BlockPool(num_blocks=7, block_tokens=16)}
LOOKAHEAD = 20


def batch(model: str, *prompts: int) -> DecodeBatch:
    return DecodeBatch(model, [Request(i, 0.0, model, n, 9) for i, n in enumerate(prompts)])


def test_batches_of_a_model_stand_side_by_side_in_the_order_of_the_list() -> None:
    first, other, second = batch("b", 1), batch("a", 1), batch("b", 1)
    assert grouped([first, other, second]) == [first, second, other]
    assert by_model_order([first, other, second], ["a", "b"]) == [other, first, second]


def test_a_batch_takes_what_the_device_could_hold_grown_by_the_look_ahead() -> None:
    kv = BlockPool(num_blocks=10, block_tokens=16)
    one = Request(9, 0.0, "a", 48, 9)
    assert fits(batch("a", 48), one, kv, lookahead_tokens=32)
    assert not fits(batch("a", 48), one, kv, lookahead_tokens=33)
    growing = batch("a", 48)
    assert fits(growing, one, kv, lookahead_tokens=32)
    growing.requests[0].generated_tokens += 1  # an engine's run is under way
    assert not fits(growing, one, kv, lookahead_tokens=32)
    held = Request(99, 0.0, "a", 160, 9)
    assert kv.grow(held, 160)  # who is there now does not matter: it leaves before the turn
    assert fits(batch("a", 48), one, kv, lookahead_tokens=32)


@given(
    wanted=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 240)), max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_packed_anew_requests_are_first_come_first_served_whatever_batches_they_were_in(
    wanted: list[tuple[str, int]], order: random.Random
) -> None:
    requests = [Request(i, float(i), model, n, 9) for i, (model, n) in enumerate(wanted)]
    listed = [DecodeBatch(request.model, [request]) for request in requests]
    order.shuffle(listed)
    packed = repacked(listed, KV.__getitem__, LOOKAHEAD)

    assert {r for each in packed for r in each.requests} == set(requests)
    assert sum(len(each.requests) for each in packed) == len(requests)
    assert all(r.model == each.model for each in packed for r in each.requests)
    for index, each in enumerate(packed):
        for place, request in enumerate(each.requests):
            before = DecodeBatch(each.model, each.requests[:place])
            assert all(r.arrival_s < request.arrival_s for r in before.requests)
            assert not place or fits(before, request, KV[each.model], LOOKAHEAD)
            for earlier in packed[:index]:  # it went past those that had no room when it came
                there = [r for r in earlier.requests if r.arrival_s < request.arrival_s]
                if earlier.model == each.model:
                    full = DecodeBatch(each.model, there)
                    assert not fits(full, request, KV[each.model], LOOKAHEAD)
    again = repacked(packed, KV.__getitem__, LOOKAHEAD)
    assert [each.requests for each in again] == [each.requests for each in packed]
