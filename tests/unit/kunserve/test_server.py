"""Micro-batches: dealing, and the public code's budget."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.request import Request
from systems.kunserve.artifact import balanced_tokens
from systems.kunserve.server import deal
from systems.serving.iteration import Limits


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
    limits = Limits(
        max_num_seqs=256, max_num_batched_tokens=4096, enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
    )  # fmt: skip
    assert balanced_tokens(limits, prompt_tokens=40_000, stages=2) == 4096
    assert balanced_tokens(limits, prompt_tokens=3000, stages=2) == 1500
    assert balanced_tokens(limits, prompt_tokens=0, stages=2) == 256
