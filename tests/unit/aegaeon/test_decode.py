"""Decisions of Algorithm 2 on plain data."""

from __future__ import annotations

from harness.block_pool import BlockPool
from harness.request import Request
from systems.aegaeon.decode import DecodeBatch, by_model_order, fits, grouped


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
    held = Request(99, 0.0, "a", 160, 9)
    assert kv.grow(held, 160)  # who is there now does not matter: it leaves before the turn
    assert fits(batch("a", 48), one, kv, lookahead_tokens=32)
