"""engine.attention=vllm: what engine=torch computes with vLLM's kernels is what it computes with
its own, wherever blocks lie and however prompts are cut."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.engine.attention_choice import vllm_folder
from harness.engine.runner import Runner
from harness.engine.work import BatchWork, Chunk
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.request import Batch, Request
from harness.running.testbed import decode, finish
from systems.serving.iteration import Limits, schedule_iteration
from tests.contract.pool_bench import PoolBench
from tests.elastic import check, generated, private, undisturbed
from tests.exactness import answers, make_clear, plain_tokens
from tests.integration.test_torch_engine import request, started
from tests.running import model_spec
from tests.unit.engine.serving import (
    CPU,
    SPEC,
    VARIANTS,
    Server,
    in_flat_buffer,
    loaded,
    paged,
    runner_of,
    served,
)


def _missing() -> str:
    try:
        vllm_folder()
    except UsageError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.vllm, pytest.mark.skipif(bool(_missing()), reason=_missing())]
WIDE = replace(SPEC, head_dim=32)  # a width that vLLM's kernels are compiled for
MODELS = {
    "gqa": WIDE,
    "mha": replace(WIDE, num_kv_heads=4, head_dim=64, qkv_bias=True, tie_embeddings=True),
    "three queries a head": replace(WIDE, num_heads=6),
    **{name: replace(WIDE, **VARIANTS[name]) for name in ("qwen3", "mixtral", "opt")},
}
MIXED = BatchWork(
    [Chunk(37, 20, True), Chunk(0, 9, False), Chunk(16, 33, True)],
    [40, 5, 63],
    [7 * i % SPEC.vocab_size for i in range(65)],
    [[9, 3, 30, 5], [12], [31, 2, 29, 8], [14, 4, 25], [1], [22, 10, 21, 11, 20]],
)


@pytest.fixture(params=MODELS)
def spec(request: pytest.FixtureRequest) -> ModelSpec:
    return MODELS[request.param]


def _served_before(runner: Runner) -> None:
    """Gives every request of MIXED its cached context: random tokens, in random chunks."""
    rng = np.random.default_rng(0)
    cached = [chunk.context for chunk in MIXED.chunks] + list(MIXED.decodes)
    for blocks, context in zip(MIXED.blocks, cached, strict=True):
        at = 0
        while at < context:
            num_tokens = int(rng.integers(1, context - at + 1))
            ids = rng.integers(SPEC.vocab_size, size=num_tokens).tolist()
            list(runner.steps(BatchWork([Chunk(at, num_tokens, True)], [], ids, [blocks]), 1))
            at += num_tokens


def _logits(spec: ModelSpec, attention: str, block_tokens: int) -> torch.Tensor:
    """Of every token of MIXED, after the contexts were computed by the same kernels."""
    runner = runner_of(loaded(spec, attention), spec, 40, block_tokens, attention)
    _served_before(runner)
    with torch.inference_mode():
        step, _ = runner.step(MIXED, runner.attention(MIXED))
        hidden = runner.embed(torch.tensor(MIXED.ids), step)
        hidden = runner.forward(hidden, step, 0, spec.num_layers)
        return runner._decoder.logits(hidden)[: len(MIXED.ids)].float()


@pytest.mark.parametrize("block_tokens", [16, 32])
def test_logits_of_a_mixed_batch_over_scattered_blocks_are_the_same(
    spec: ModelSpec, block_tokens: int
) -> None:
    ours, theirs = (_logits(spec, attention, block_tokens) for attention in ("torch", "vllm"))
    assert ours.std() > 0.1
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_in_half_precision_are_as_near_to_those_in_float32_as_ours(dtype: str) -> None:
    exact = _logits(WIDE, "torch", 16)
    ours, theirs = (
        (_logits(replace(WIDE, dtype=dtype), attention, 16) - exact).abs().max()
        for attention in ("torch", "vllm")
    )
    assert theirs < 2 * ours


@pytest.mark.parametrize("memory", ["paged", "slabbed", "elastic"])
@pytest.mark.parametrize("block_tokens", [16, 32])
def test_any_schedule_gives_the_tokens_of_our_kernels(
    spec: ModelSpec, memory: str, block_tokens: int
) -> None:
    """Random batches, chunks, runs of decodes and preemptions."""
    tokens = []
    for attention in ("torch", "vllm"):
        requests = [
            Request(i, 0.0, "test", prompt, output)
            for i, (prompt, output) in enumerate([(70, 9), (3, 40), (33, 20), (16, 16), (100, 3)])
        ]
        weights = loaded(spec, attention), in_flat_buffer(spec)
        server = served(memory, *weights, spec, 14, block_tokens, attention)
        server.serve_at_random(requests, np.random.default_rng(1))
        tokens.append(server.book.generated)
    assert tokens[0] == tokens[1]


def _with_shared_prefixes(server: Server) -> int:
    """Serves requests that begin alike, with a prefix cache; how many tokens it found."""
    requests = [Request(i, 0.0, "test", 40 + 7 * i, 12) for i in range(5)]
    for each in requests:
        each.shared = ((1, 35),)
    limits = Limits(
        max_num_seqs=2, max_num_batched_tokens=30, enable_chunked_prefill=True,
        scheduler_reserve_full_isl=True, enable_prefix_caching=True,
    )  # fmt: skip
    waiting, running, found = deque(requests), list[Request](), 0
    while waiting or running:
        batch = schedule_iteration(running, waiting, server.pool, limits, server.evict)
        found += sum(
            each.computed_tokens
            for each, _ in batch.chunks
            if each.request_id not in server.book.generated
        )
        for each in batch.decodes:
            assert server.pool.grow(each, each.computed_tokens + 1)
        server.execute(batch)
        running = [each for each in running if not each.finished]
    return found


def test_queries_attend_to_what_a_prefix_cache_has() -> None:
    tokens, found = [], []
    for attention in ("torch", "vllm"):
        server = paged(loaded(WIDE, attention), WIDE, 40, 16, attention)
        found.append(_with_shared_prefixes(server))
        tokens.append(server.book.generated)
    assert tokens[0] == tokens[1]
    assert found[0] == found[1] > 0


def test_a_layer_that_goes_gives_its_products_back(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = loaded(WIDE, "vllm")
    released: list[int] = []
    real = torch.ops._C.release_dnnl_matmul_handler
    monkeypatch.setattr(
        torch.ops._C, "release_dnnl_matmul_handler", lambda at: (released.append(at), real(at))
    )
    layers.load()
    assert released == [], "the first layers' own were made before it was watched"
    layers.load()
    assert len(released) == 4 * WIDE.num_layers


@pytest.mark.live
@pytest.mark.usefixtures("forked_workers")
def test_a_dedicated_instance_gives_the_same_tokens(tmp_path: Path) -> None:
    """Its blocks are scattered: two prompts grow in turns, chunk by chunk, one beside decodes."""
    first, second, third = [request(0, 60, 30), request(1, 45, 20), request(2, 70, 25)]
    models = {"default": model_spec("tiny-llama")}
    make_clear([first, second, third], models)
    with started(tmp_path, [first, second, third], attention="vllm") as bench:

        async def story() -> None:
            device = bench.instances[0]
            for each in (first, second):
                assert device.kv.grow(each, 17)
            await device.execute(Batch(chunks=[(first, 17), (second, 17)]))
            await bench.prefill(first, chunk=20)
            while not third.decoding:  # third's chunks beside first's decodes
                num_tokens = min(23, third.prompt_tokens - third.computed_tokens)
                assert device.kv.grow(third, third.computed_tokens + num_tokens)
                assert device.kv.grow(first, first.computed_tokens + 1)
                await device.execute(Batch(chunks=[(third, num_tokens)], decodes=[first]))
            await bench.prefill(second, chunk=9)
            alive = [first, second, third]
            while alive := [each for each in alive if not each.finished]:
                await bench.decode(*alive)

        bench.loop.run(story())
        assert bench.resolved["attention"] == "vllm 0.32.0"
        assert answers(first, second, third) == plain_tokens([first, second, third], models)


@pytest.mark.live
@pytest.mark.usefixtures("forked_workers")
def test_pooled_instances_give_the_same_tokens() -> None:
    """Models of three shapes take turns in one memory; KV goes to the host and to the other
    instance."""
    bench = PoolBench("torch", ("wide", "narrow"), attention="vllm")
    try:
        requests = [bench.request(m, 30, 12) for m in ("narrow", "wide", "deep", "narrow")]
        make_clear(requests, bench.models)
        one, two = bench.pool

        async def story() -> None:
            for each in requests:
                await bench.prefill(one, each)
                await bench.decode(one, each, max_steps=2)
                if each.model == "wide":
                    one.swap_out(each, lambda: None)
            for each in requests:
                if each.model == "wide":
                    await bench.ensure(two, "wide")
                    await bench.swap_in(two, each)
                    await bench.decode(two, each)
            await bench.decode(one, requests[0], requests[3])
            await bench.decode(one, requests[2])

        bench.run(story)
        assert answers(*requests) == plain_tokens(requests, bench.models)
    finally:
        bench.close()


@pytest.mark.live
@pytest.mark.usefixtures("forked_workers")
def test_elastic_instances_give_the_same_tokens() -> None:
    """A pipeline whose second half first attends where the KV is, then moves it; layers are
    dropped for KV and come back."""
    with private("torch", 2, attention="vllm") as made:

        async def story() -> None:
            first, second = made.instances
            long, short = made.request(60, 16), made.request(21, 24)
            for num_tokens in (17, 20, 23):
                assert first.kv.grow(long, long.computed_tokens + num_tokens)
                chunks = [(long, num_tokens)]
                if not short.computed_tokens:
                    assert first.kv.grow(short, 21)
                    chunks.append((short, 21))
                await first.execute(Batch(chunks=chunks))
            await decode(first, [long, short], max_steps=3)
            await first.drop(range(2, 4))
            pipe = made.cluster.pipeline([(first, range(2)), (second, range(2, 4))])
            pipe.adopt([long, short], first)
            await decode(pipe, [long, short], max_steps=4)
            await made.cluster.move_kv([long, short], range(2, 4), first, second)
            await decode(pipe, [long, short], max_steps=4)
            await finish(pipe, [long, short])
            assert await first.load(range(4), second)
            again = made.request(33, 5)
            assert first.kv.grow(again, 33)
            await first.execute(Batch(chunks=[(again, 33)]))
            await finish(first, [again])

        made.run(story())
        tokens = generated(made)
        check(made)
    assert len(tokens) == 3
    assert tokens == undisturbed(made)


def test_every_step_says_where_its_tokens_go() -> None:
    """One by one and at once, over a block's end."""
    runner = runner_of(loaded(WIDE, "vllm"), WIDE, 40, 16, "vllm")
    blocks = [[30, 4, 17], [6, 28, 9]]
    ids = list(range(20, 34))
    chunks = BatchWork([Chunk(0, 14, True)] * 2, [], ids * 2, blocks)
    (tokens,) = runner.steps(chunks, 1)
    at_once = list(runner.steps(BatchWork([], [14, 14], tokens, blocks), 20))
    one_by_one = []
    for position in range(14, 34):
        (tokens,) = runner.steps(BatchWork([], [position] * 2, tokens, blocks), 1)
        one_by_one.append(tokens)
    assert one_by_one == at_once
    assert runner.device == CPU
