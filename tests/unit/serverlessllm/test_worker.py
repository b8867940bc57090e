"""What a worker runs next."""

from __future__ import annotations

from harness.device.block_pool import BlockPool
from systems.serverlessllm.worker import front, iteration
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
