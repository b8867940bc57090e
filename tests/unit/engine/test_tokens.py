"""Exactness: whatever the schedule, the tokens are those of transformers' greedy decoding."""

import json
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.device.prompts import prompt_ids
from harness.engine import first_tokens
from harness.engine.linear import LoadedLayers
from harness.request import Batch, Prompt, Request
from systems.serving.iteration import Limits, schedule_iteration
from tests.accounts import audit
from tests.unit.engine.conftest import Family
from tests.unit.engine.serving import SPEC, in_flat_buffer, loaded, paged, served


@pytest.fixture(scope="session")
def layers(family: Family) -> LoadedLayers:
    return loaded(family.spec)


@pytest.fixture(scope="session")
def buffer(family: Family) -> torch.Tensor:
    return in_flat_buffer(family.spec)


def greedy_tokens(family: Family, request: Request) -> list[int]:
    """By the reference, one request at a time, without a cache."""
    ids = prompt_ids(request, SPEC.vocab_size, 0)
    with torch.inference_mode():
        for _ in range(request.output_tokens):
            logits = family.reference(torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[request.prompt_tokens :]


def test_the_first_tokens_without_a_worker_are_the_references(
    family: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [Request(i, 0.0, "m", 5 + 13 * i, 1) for i in range(3)]
    first_tokens.main(family.spec, [prompt_ids(each, SPEC.vocab_size, 0) for each in requests])
    expected = [greedy_tokens(family, each)[0] for each in requests]
    assert json.loads(capsys.readouterr().out) == expected


lengths = st.lists(st.tuples(st.integers(1, 45), st.integers(1, 9)), min_size=1, max_size=7)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    lengths=lengths,
    block_tokens=st.sampled_from([1, 4, 16]),
    slack=st.integers(0, 60),
    seed=st.integers(0, 2**16),
    memory=st.sampled_from(["paged", "slabbed", "elastic"]),
)
def test_any_schedule_gives_the_greedy_tokens(
    family: Family,
    layers: LoadedLayers,
    buffer: torch.Tensor,
    lengths: list[tuple[int, int]],
    block_tokens: int,
    slack: int,
    seed: int,
    memory: str,
) -> None:
    requests = [Request(i, 0.0, "test", prompt, out) for i, (prompt, out) in enumerate(lengths)]
    longest = max(prompt + out for prompt, out in lengths)
    num_blocks = -(-longest // block_tokens) + slack
    server = served(memory, layers, buffer, family.spec, num_blocks, block_tokens)
    server.serve_at_random(requests, np.random.default_rng(seed))
    for request in requests:
        assert server.book.generated[request.request_id] == greedy_tokens(family, request)
    assert not server.pool.held


def test_a_real_prompt_is_what_is_decoded(family: Family, layers: LoadedLayers) -> None:
    requests = [Request(i, 0.0, "test", n, 9) for i, n in enumerate((7, 20))]
    plain = [greedy_tokens(family, request) for request in requests]
    for request in requests:
        ids = [
            (37 * k + request.request_id) % SPEC.vocab_size for k in range(request.prompt_tokens)
        ]
        request.prompt = Prompt.of("", ids, [0] * len(ids))
    server = paged(layers, family.spec, 60, 4)
    server.serve_at_random(requests, np.random.default_rng(0))
    for request, random in zip(requests, plain, strict=True):
        assert request.prompt is not None
        ids = request.prompt.ids.tolist()
        with torch.inference_mode():
            for _ in range(request.output_tokens):
                ids.append(int(family.reference(torch.tensor([ids])).logits[0, -1].argmax()))
        found = server.book.generated[request.request_id]
        assert found == ids[request.prompt_tokens :]
        assert found != random


def test_a_long_run_of_decodes_over_scattered_blocks_gives_the_greedy_tokens(
    family: Family, layers: LoadedLayers
) -> None:
    """The blocks between the two requests' are taken by others: the copying path."""
    server = paged(layers, family.spec, 60, 4)
    first, others, last = (Request(i, 0.0, "test", n, 30) for i, n in enumerate((20, 140, 13)))
    for request in (first, others, last):
        assert server.pool.grow(request, request.prompt_tokens)
    server.execute(Batch(chunks=[(r, r.prompt_tokens) for r in (first, others, last)]))
    for request in (first, last):
        assert server.pool.grow(request, request.prompt_tokens + 29)
    server.execute(Batch(decodes=[first, last]), max_steps=29)
    for request in (first, last):
        assert server.book.generated[request.request_id] == greedy_tokens(family, request)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2), st.integers(0, 30)),
        min_size=2, max_size=8,
    ),
    block_tokens=st.sampled_from([4, 16]),
    slack=st.integers(0, 30),
    budget=st.integers(5, 60),
)  # fmt: skip
def test_what_a_prefix_cache_finds_changes_no_token(
    family: Family,
    layers: LoadedLayers,
    rows: list[tuple[int, int, int, int]],
    block_tokens: int,
    slack: int,
    budget: int,
) -> None:
    requests = [Request(i, 0.0, "test", prompt, out) for i, (prompt, out, _, _) in enumerate(rows)]
    for request, (_, _, stream, tokens) in zip(requests, rows, strict=True):
        request.shared = ((stream, tokens),) if tokens else ()
    num_blocks = max(-(-(prompt + out) // block_tokens) for prompt, out, _, _ in rows) + slack
    server = paged(layers, family.spec, num_blocks, block_tokens)
    limits = Limits(
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True,
        enable_prefix_caching=True,
    )
    running, waiting = list[Request](), deque(requests)
    while waiting or running:
        batch = schedule_iteration(running, waiting, server.pool, limits, server.evict)
        if batch.requests:  # else one was preempted for itself, and waits
            server.execute(batch)
        audit(server.pool)
        tables: Any = server.tables
        audit(tables)
        running = [request for request in running if not request.finished]
    for request in requests:
        assert server.book.generated[request.request_id] == greedy_tokens(family, request)
        assert request.cached_tokens is not None
