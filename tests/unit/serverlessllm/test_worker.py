"""What a worker runs next, and when its latest iteration ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.device.block_pool import BlockPool
from systems.serverlessllm.worker import Decoding, front, iteration
from tests.unit.serverlessllm.stories import requests


def test_the_front_is_of_one_model() -> None:
    queue = requests("AABA")
    assert front(queue, BlockPool(100, 4)) == queue[:2]


def test_the_front_ends_where_the_kv_memory_does() -> None:
    queue = requests("AAA", prompt=8)
    kv = BlockPool(5, 4)
    assert front(queue, kv) == queue[:2]
    kv.grow(queue[2], 8)  # what a later one holds is the earlier ones' to have
    assert front(queue, kv) == queue[:2]


def test_prompts_go_before_decodes_all_of_them_at_once() -> None:
    queue = requests("AAA")
    queue[0].computed_tokens, queue[0].generated_tokens = 10, 1
    batch = iteration(queue)
    assert [(r.request_id, n) for r, n in batch.chunks] == [(1, 10), (2, 10)]
    assert not batch.decodes


def test_a_request_that_lost_its_kv_computes_all_it_has_again() -> None:
    (request,) = requests("A")
    request.generated_tokens = 3
    assert iteration([request]).chunks == [(request, 13)]


def test_without_prompts_everything_decodes() -> None:
    queue = requests("AA")
    for request in queue:
        request.computed_tokens, request.generated_tokens = 10, 1
    assert iteration(queue).decodes == queue


@given(st.floats(0.001, 0.05), st.floats(0, 1e-5), st.integers(0, 500), st.floats(0.01, 0.99))
def test_the_last_step_is_the_one_that_stepping_would_find(
    step_s: float, growth_s: float, steps: int, within: float
) -> None:
    ends = [5.0]
    for k in range(steps + 1):
        ends.append(ends[-1] + step_s + k * growth_s)
    now_s = ends[steps] + within * (ends[steps + 1] - ends[steps])
    decoding = Decoding([], 5.0, step_s, growth_s)
    assert decoding.steps(now_s) == steps
    assert decoding.last_step_s(now_s) == pytest.approx(ends[steps])
