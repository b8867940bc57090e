"""Micro-batches: seats, dealing, and what one iteration computes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.microbatch import (
    Formed,
    Job,
    Limits,
    artifact_limits,
    deal,
    form,
    seat,
)

CHUNKED = Limits(max_num_seqs=3, max_num_batched_tokens=10, chunked=True)
WHOLE = Limits(max_num_seqs=3, max_num_batched_tokens=10, chunked=False)
DECODES = [Job(0, 1, True), Job(1, 1, True)]


def test_the_cap_is_a_micro_batchs() -> None:
    assert seat([3, 2, 2], 3) == 1
    assert seat([3, 3], 3) is None
    sizes = [0, 0]
    while (k := seat(sizes, 256)) is not None:
        sizes[k] += 1
    assert sizes == [256, 256]  # a pair of instances runs what two ran


def test_chunks_fill_what_decodes_leave() -> None:
    assert form(DECODES, [Job(5, 30)], CHUNKED, 100) == Formed([0, 1], [(5, 8)], 1)
    assert form(DECODES, [Job(5, 3), Job(6, 3)], CHUNKED, 100) == Formed([0, 1], [(5, 3)], 1)
    going_on = [*DECODES, Job(5, 22)]
    assert form(going_on, [Job(6, 3)], CHUNKED, 100) == Formed([0, 1], [(5, 8)], 0)


def test_whole_prompts_go_before_decodes() -> None:
    assert form(DECODES, [Job(5, 6)], WHOLE, 100) == Formed([], [(5, 6)], 1)
    assert form(DECODES, [], WHOLE, 100) == Formed([0, 1], [], 0)
    assert form([], [Job(5, 30), Job(6, 1)], WHOLE, 100) == Formed([], [(5, 30)], 1)  # alone
    assert form([], [Job(5, 6), Job(6, 6)], WHOLE, 100) == Formed([], [(5, 6)], 1)


def test_one_without_room_stops_the_queue() -> None:
    assert form(DECODES, [Job(5, 6), Job(6, 1)], CHUNKED, 5) == Formed([0, 1], [], 0)
    assert form(DECODES, [Job(5, 6)], WHOLE, 5) == Formed([0, 1], [], 0)


jobs = st.lists(st.tuples(st.integers(2, 60), st.booleans()), max_size=8)


@settings(deadline=None)
@given(
    ongoing=jobs,
    queue=st.lists(st.integers(1, 60), max_size=8),
    chunked=st.booleans(),
    seats=st.integers(1, 12),
    budget=st.integers(1, 80),
    free=st.integers(0, 200),
)
def test_limits_hold_and_something_runs_if_anything_can(
    ongoing: list[tuple[int, bool]],
    queue: list[int],
    chunked: bool,
    seats: int,
    budget: int,
    free: int,
) -> None:
    limits = Limits(max_num_seqs=seats, max_num_batched_tokens=budget, chunked=chunked)
    running = [Job(k, 1 if done else lacking, done) for k, (lacking, done) in enumerate(ongoing)]
    waiting = [Job(100 + k, tokens) for k, tokens in enumerate(queue)]
    found = form(running, waiting, limits, free)
    tokens = len(found.decodes) + sum(n for _, n in found.chunks)
    assert tokens <= budget or len(found.chunks) == 1
    new = [request for request, _ in found.chunks if request >= 100]
    assert new == [job.request_id for job in waiting[: found.admitted]]
    assert len(running) + found.admitted <= max(seats, len(running))
    assert sum(job.lacking_tokens for job in waiting[: found.admitted]) <= free
    served = [*found.decodes, *[request for request, _ in found.chunks]]
    assert len(set(served)) == len(served)
    lacking = {job.request_id: job.lacking_tokens for job in [*running, *waiting]}
    assert all(0 < n <= lacking[request] for request, n in found.chunks)
    if running:
        assert tokens > 0
    elif waiting and waiting[0].lacking_tokens <= free:
        assert found.admitted


def test_the_longest_go_to_the_lightest() -> None:
    assert deal({1: 4, 2: 3, 3: 2, 4: 1}, 2) == [[1, 4], [2, 3]]


@settings(deadline=None)
@given(
    contexts=st.dictionaries(st.integers(0, 999), st.integers(0, 5000), max_size=40),
    num=st.integers(1, 8),
)
def test_dealing_loses_nobody_and_is_even(contexts: dict[int, int], num: int) -> None:
    dealt = deal(contexts, num)
    assert sorted(r for part in dealt for r in part) == sorted(contexts)
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= 1
    weights = [sum(contexts[r] for r in part) for part in dealt]
    assert max(weights) - min(weights) <= max(contexts.values(), default=0)


def test_the_published_code_chunks_after_a_drop() -> None:
    before = Limits(max_num_seqs=256, max_num_batched_tokens=131_072, chunked=False)
    found = artifact_limits(before, prompt_tokens=40_000, stages=2, chunk_tokens=4096)
    assert (found.chunked, found.max_num_batched_tokens, found.max_num_seqs) == (True, 4096, 256)
    assert artifact_limits(before, 3000, 2, 4096).max_num_batched_tokens == 1500
    assert artifact_limits(before, 0, 2, 4096).max_num_batched_tokens == 256
    with pytest.raises(ValueError, match="max_num_seqs=0 must be at least 1"):
        Limits(max_num_seqs=0, max_num_batched_tokens=1, chunked=True)
