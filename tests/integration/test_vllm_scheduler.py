"""Our scheduling policy beside vLLM's own Scheduler object: the same batches, step by step."""

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.configuration.checkpoint import hf_config
from harness.device.caching_pool import CachingPool
from harness.request import Request, Segments
from systems.serving.iteration import Limits, schedule_iteration
from tests.accounts import audit
from tests.running import model_spec

BLOCK = 4
MAX_MODEL_LEN = 80  # above every prompt and output drawn below
Step = dict[int, int]  # request_id -> tokens computed in this iteration
Cached = list[int | None]  # tokens of each request that were in memory when it was first admitted


@dataclass(frozen=True)
class Case:
    requests: list[tuple[int, int, int]]  # (iteration of arrival, prompt, output tokens)
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked: bool
    shared: list[Segments] | None = None  # of each request's prompt; None: no prefix caching


@pytest.fixture(scope="session")
def config_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    (directory / "config.json").write_text(json.dumps(hf_config(model_spec("tiny-llama"), 1, 2)))
    return directory


def vllm_scheduler(case: Case, config_dir: Path) -> Any:
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=case.shared is not None)
    cache.num_gpu_blocks = case.num_blocks + 1  # vLLM keeps one for itself
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(config_dir), dtype="float32", skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case.max_num_seqs,
            max_num_batched_tokens=case.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=case.chunked,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=cache,
    )  # fmt: skip
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_config = KVCacheConfig(
        num_blocks=case.num_blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return Scheduler(
        vllm_config=config, kv_cache_config=kv_config, block_size=BLOCK,
        structured_output_manager=StructuredOutputManager(config),
    )  # fmt: skip


def token_ids(case: Case, i: int) -> list[int]:
    """Of prompt i: no two streams have a token in common."""
    _, prompt, _ = case.requests[i]
    segments = case.shared[i] if case.shared is not None else ()
    ids = [1000 * (1 + stream) + k for stream, tokens in segments for k in range(tokens)]
    return (ids + [10**6 * (1 + i) + k for k in range(prompt)])[:prompt]


def theirs(case: Case, config_dir: Path) -> tuple[list[Step], Cached]:
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request as VllmRequest

    init_none_hash(sha256)
    cached: Cached = [None] * len(case.requests)
    scheduler, steps = vllm_scheduler(case, config_dir), []
    requests = {
        str(i): VllmRequest(
            request_id=str(i),
            prompt_token_ids=token_ids(case, i),
            sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            block_hasher=get_request_block_hasher(BLOCK, sha256) if case.shared else None,
        )
        for i, (_, _, output) in enumerate(case.requests)
    }
    iteration = 0
    while iteration <= max(at for at, _, _ in case.requests) or scheduler.has_unfinished_requests():
        for i, (at, _, _) in enumerate(case.requests):
            if at == iteration:
                scheduler.add_request(requests[str(i)])
        planned = scheduler.schedule()
        ids = list(planned.num_scheduled_tokens)
        sampled = [[500 + int(i)] if _samples(requests[i]) else [] for i in ids]
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: row for row, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip
        for outputs in scheduler.update_from_output(planned, result).values():
            for output in outputs.outputs:
                if case.shared is not None and output.prefill_stats is not None:
                    cached[int(output.request_id)] = output.prefill_stats.num_local_cached_tokens
        steps.append({int(i): n for i, n in planned.num_scheduled_tokens.items()})
        iteration += 1
        assert iteration < 5000, "vLLM's scheduler makes no progress"
    return steps, cached


def _samples(request: Any) -> bool:
    """`schedule` has counted the batch as computed already."""
    done: bool = request.num_computed_tokens >= request.num_tokens
    return done


def ours(case: Case) -> tuple[list[Step], Cached]:
    kv, steps = CachingPool(case.num_blocks, BLOCK), []
    limits = Limits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.max_num_batched_tokens,
        enable_chunked_prefill=case.chunked,
        scheduler_reserve_full_isl=True,
        enable_prefix_caching=case.shared is not None,
    )
    requests = [Request(i, 0.0, "m", p, o) for i, (_, p, o) in enumerate(case.requests)]
    for request, segments in zip(requests, case.shared or [], strict=False):
        request.shared = segments
    running: list[Request] = []
    waiting: deque[Request] = deque()

    def evict(request: Request) -> None:
        kv.release(request)
        request.computed_tokens = 0

    iteration = 0
    while iteration <= max(at for at, _, _ in case.requests) or running or waiting:
        waiting += [
            r for r, (at, _, _) in zip(requests, case.requests, strict=True) if at == iteration
        ]
        batch = schedule_iteration(running, waiting, kv, limits, evict)
        work = batch.chunks + [(request, 1) for request in batch.decodes]
        steps.append({request.request_id: n for request, n in work})
        for request, n in work:
            request.computed_tokens += n
            request.generated_tokens += request.computed_tokens == request.known_tokens
            if request.finished:
                kv.release(request)
        audit(kv)
        running[:] = [request for request in running if not request.finished]
        iteration += 1
        assert iteration < 5000, "our scheduler makes no progress"
    return steps, [request.cached_tokens for request in requests]


@st.composite
def cases(draw: st.DrawFn, sharing: bool) -> Case:
    requests = draw(
        st.lists(
            st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 30)),
            min_size=1, max_size=12 if sharing else 8,
        )
    )  # fmt: skip
    longest = max(prompt + output for _, prompt, output in requests)
    chunked = draw(st.booleans())
    budget = draw(st.integers(8 if chunked else MAX_MODEL_LEN, 120))
    shared = None
    if sharing:  # the first segment of one of two system prompts, then one of three texts
        system = st.tuples(st.integers(0, 1), st.sampled_from([4, 6, 16]))
        text = st.tuples(st.integers(2, 4), st.integers(1, 30))
        segments = st.one_of(st.tuples(system), st.tuples(system, text), st.tuples())
        shared = [draw(segments) for _ in requests]
    return Case(
        requests=requests,
        num_blocks=draw(st.integers(-(-longest // BLOCK), 3 * -(-longest // BLOCK))),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=budget,
        chunked=chunked,
        shared=shared,
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(sharing=False))
@example(case=Case([(0, 20, 30), (0, 20, 30), (3, 10, 5)], 14, 4, 16, chunked=True))  # preempts
def test_every_iteration_is_the_one_that_vllm_schedules(case: Case, config_dir: Path) -> None:
    assert ours(case) == theirs(case, config_dir)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(sharing=True))
@example(  # the third finds the blocks of the first, which another one holds too
    case=Case(
        [(0, 17, 3), (0, 17, 3), (9, 17, 3)], 14, 4, 16, chunked=True, shared=[((0, 16),)] * 3
    )
)
def test_so_are_those_with_a_prefix_cache_and_what_it_finds(case: Case, config_dir: Path) -> None:
    assert ours(case) == theirs(case, config_dir)
