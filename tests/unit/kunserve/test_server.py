"""Micro-batches: dealing, the public code's budget, and what a server says of its load."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import compiled
from harness.clock import Loop
from harness.device.block_pool import BlockPool
from harness.request import Request
from systems.kunserve.artifact import balanced_tokens
from systems.kunserve.server import Server, deal
from systems.serving.iteration import Limits

LIMITS = Limits(
    max_num_seqs=256, max_num_batched_tokens=4096, enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
)  # fmt: skip


def requests(contexts: dict[int, int]) -> list[Request]:
    return [Request(k, 0.0, "m", 9, 9, computed_tokens=n) for k, n in contexts.items()]


def test_the_longest_go_to_the_lightest() -> None:
    dealt = deal(requests({1: 4, 2: 3, 3: 2, 4: 1}), 2)
    assert [[r.request_id for r in part] for part in dealt] == [[1, 4], [2, 3]]


@settings(deadline=None)
@given(
    contexts=st.dictionaries(st.integers(0, 999), st.integers(0, 5000), max_size=40),
    num=st.integers(1, 8),
)
def test_dealing_loses_nobody_and_is_even(contexts: dict[int, int], num: int) -> None:
    dealt = deal(requests(contexts), num)
    assert sorted(r.request_id for part in dealt for r in part) == sorted(contexts)
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1
    weights = [sum(r.computed_tokens for r in part) for part in dealt]
    assert max(weights) - min(weights) <= max(contexts.values(), default=0)


def test_the_published_code_spreads_waiting_prompts_over_the_micro_batches() -> None:
    assert balanced_tokens(LIMITS, prompt_tokens=40_000, stages=2) == 4096
    assert balanced_tokens(LIMITS, prompt_tokens=3000, stages=2) == 1500
    assert balanced_tokens(LIMITS, prompt_tokens=0, stages=2) == 256


stand_in = pytest.mark.skipif(compiled.state() == "compiled", reason="has a stand-in's executor")


def server() -> Server:
    executor: Any = SimpleNamespace(name="a", kv=BlockPool(num_blocks=9, block_tokens=16))
    group: Any = ("a",)
    return Server(group, executor, Loop(), limits=LIMITS, steps_beside=1)


@stand_in
def test_the_load_follows_the_tokens_of_a_run() -> None:
    """An engine counts them at each of its steps, before the run ends."""
    found, one = server(), Request(0, 0.0, "m", 16, 99, computed_tokens=16)
    found.join([one])
    assert found.load().used_blocks == 1
    one.generated_tokens += 1
    assert found.load().used_blocks == 2


@stand_in
def test_requests_preempted_while_their_kv_is_on_links_are_held_back_in_the_queues_order() -> None:
    found = server()
    low, other, high = (Request(k, 0.0, "m", 9, 9, priority=int(k == 2)) for k in range(3))
    for preempted in (high, other, low):
        found.waiting.appendleft(preempted)
    found.num_preempted, found.moving = 3, {0, 1, 2}
    found.sort_preempted()
    assert found.held_back == [high, low, other]
    assert not found.waiting
