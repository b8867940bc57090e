"""The engines that `bench_engine` compares, each as a function that serves requests once."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from omegaconf import OmegaConf

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.device.prompts import prompt_ids
from harness.model_spec import ModelSpec
from harness.placement import Elastic, dedicated
from harness.records.record import Recorder
from harness.request import Request
from harness.running.testbed import started
from systems.serving.iteration import Limits, schedule_iteration
from systems.serving.replica import Replica
from tests.running import hardware_profile, model_spec

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY = (1, 16, 64)  # requests served at once: the first of the 64
NUM_REQUESTS = max(CONCURRENCY)
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 512), (64, 256)  # inclusive ranges, uniform
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 2048
KV_TOKENS = 65536
BLOCK_TOKENS = {"torch": 16, "vllm": 128}  # by engine.attention: its default, and vLLM's on a CPU
SEED = 0
LIMITS = Limits(
    max_num_seqs=MAX_NUM_SEQS,
    max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    enable_chunked_prefill=True,
    scheduler_reserve_full_isl=True,
)
# One instance that holds all layers; pages of one layer, as KunServe's, Llumnix's and ZigZag's.
ELASTIC = Elastic(page_layers=1)

Tokens = list[list[int]]
Serve = Callable[[int], tuple[float, Tokens]]  # so many, at once: seconds, each one's tokens
ALL_CORES = len(os.sched_getaffinity(0))


def model(path: Path | None = None) -> ModelSpec:
    spec: ModelSpec = model_spec("tiny-llama")
    return replace(spec, path=None if path is None else str(path))


def requests() -> list[Request]:
    rng = np.random.default_rng(SEED)
    prompts = rng.integers(*PROMPT_TOKENS, NUM_REQUESTS, endpoint=True).tolist()
    outputs = rng.integers(*OUTPUT_TOKENS, NUM_REQUESTS, endpoint=True).tolist()
    return [
        Request(i, 0.0, "default", prompt, output)
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]


@contextmanager
def torch_engine(
    spec: ModelSpec, num_threads: int, attention: str = "torch", elastic: Elastic | None = None
) -> Iterator[tuple[Serve, int]]:
    """engine=torch with its worker process, scheduled as vLLM does it."""
    from harness.engine.engine import TorchEngine

    values = OmegaConf.load(ROOT / "conf/engine/torch.yaml")
    values.num_threads = num_threads
    del values["_target_"]
    values.attention, values.block_tokens = attention, BLOCK_TOKENS[attention]
    values.num_kv_blocks = KV_TOKENS // values.block_tokens
    engine = TorchEngine(typed(plain(values), TorchEngine.Config, "engine"))
    hardware, models, recorder = hardware_profile("local"), {"default": spec}, Recorder([])
    placements = [replace(each, elastic=elastic) for each in dedicated(models, hardware)]
    with started(engine, models, hardware, placements, recorder, seed=SEED) as (cluster, loop):
        own: Any = cluster.instances[0] if cluster.elastic is None else cluster.elastic.instances[0]
        book = own._book if cluster.elastic is None else own.runner._pipeline.book
        tokens = book.generated

        def serve(num_requests: int) -> tuple[float, Tokens]:
            todo = requests()[:num_requests]
            recorder.__init__(todo)  # type: ignore[misc]
            tokens.clear()
            replica = Replica(own, own.kv, loop, LIMITS)

            async def story() -> None:
                for request in todo:
                    replica.submit(request)
                loop.spawn(replica.serve(), name="replica")
                while recorder.num_done < len(todo):
                    await loop.sleep(0.005)

            start = time.perf_counter()
            loop.run(story())
            return time.perf_counter() - start, [tokens[r.request_id] for r in todo]

        yield serve, values.num_threads


@contextmanager
def in_process(
    spec: ModelSpec, num_threads: int, attention: str = "torch", elastic: Elastic | None = None
) -> Iterator[tuple[Serve, int]]:
    """Our worker's part under the same policy, without its process: what messages cost."""
    import torch

    from harness.engine.worker import keep_freed_memory
    from tests.unit.engine import serving

    keep_freed_memory()  # as a worker does: else page faults take up to a third of its time
    torch.set_num_threads(num_threads)
    how = (KV_TOKENS // BLOCK_TOKENS[attention], BLOCK_TOKENS[attention], attention)
    server = (
        serving.paged(serving.loaded(spec, attention), spec, *how)
        if elastic is None
        else serving.elastic(spec, *how)
    )

    def serve(num_requests: int) -> tuple[float, Tokens]:
        todo = requests()[:num_requests]
        server.book.generated.clear()
        running: list[Request] = []
        waiting = deque(todo)
        start = time.perf_counter()
        while waiting or running:
            batch = schedule_iteration(running, waiting, server.pool, LIMITS, server.evict)
            steps = 1
            if not batch.chunks:
                steps = min(request.remaining_tokens for request in batch.decodes)
                steps = server.pool.growth_steps(batch.decodes, steps)
            for request in batch.decodes:
                server.pool.grow(request, request.computed_tokens + steps)
            server.execute(batch, steps)
            running = [request for request in running if not request.finished]
        return time.perf_counter() - start, [server.book.generated[r.request_id] for r in todo]

    yield serve, torch.get_num_threads()


@contextmanager
def vllm_cpu(spec: ModelSpec, num_threads: None) -> Iterator[tuple[Serve, int]]:
    """vLLM's offline engine with its own choice of threads and compilation."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(spec.path), skip_tokenizer_init=True, dtype=spec.dtype,
        max_model_len=spec.max_position, max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS, enable_prefix_caching=False,
    )  # fmt: skip
    todo = requests()
    prompts: Any = [{"prompt_token_ids": prompt_ids(r, spec.vocab_size, SEED)} for r in todo]
    sampling = [
        SamplingParams(temperature=0, max_tokens=r.output_tokens, ignore_eos=True, detokenize=False)
        for r in todo
    ]

    def serve(num_requests: int) -> tuple[float, Tokens]:
        mine = prompts[:num_requests], sampling[:num_requests]
        start = time.perf_counter()
        answers = llm.generate(*mine, use_tqdm=False)
        return time.perf_counter() - start, [list(a.outputs[0].token_ids) for a in answers]

    yield serve, threads_of_vllm()


def threads_of_vllm() -> int:
    """Of its worker, a child process: a thread for each core that it is bound to."""
    children = psutil.Process().children(recursive=True)
    (worker,) = (child for child in children if child.cmdline()[0].startswith("VLLM::Worker"))
    return len(worker.cpu_affinity())


@contextmanager
def hf_generate(spec: ModelSpec, num_threads: int) -> Iterator[tuple[Serve, int]]:
    """One left-padded batch of everything, run to the longest output."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    network = AutoModelForCausalLM.from_pretrained(spec.path, dtype=torch.float32).eval()

    def serve(num_requests: int) -> tuple[float, Tokens]:
        todo = requests()[:num_requests]
        longest = max(request.prompt_tokens for request in todo)
        steps = max(request.output_tokens for request in todo)
        ids = torch.zeros(len(todo), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(todo):
            ids[row, -request.prompt_tokens :] = torch.tensor(
                prompt_ids(request, spec.vocab_size, SEED)
            )
            mask[row, -request.prompt_tokens :] = 1
        start = time.perf_counter()
        with torch.inference_mode():
            out = network.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=steps,
                min_new_tokens=steps, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        wall_s = time.perf_counter() - start
        rows = zip(out[:, longest:].tolist(), todo, strict=True)
        return wall_s, [row[: request.output_tokens] for row, request in rows]

    yield serve, torch.get_num_threads()


CONTENDERS: dict[str, Any] = {
    "vllm-cpu": vllm_cpu,
    "torch": torch_engine,  # as many threads as vLLM has
    "vllm-kernels": partial(torch_engine, attention="vllm"),  # ours, with engine.attention=vllm
    "torch-in-process": in_process,
    "vllm-kernels-in-process": partial(in_process, attention="vllm"),
    "elastic": partial(torch_engine, elastic=ELASTIC),
    "elastic-vllm-kernels": partial(torch_engine, attention="vllm", elastic=ELASTIC),
    "elastic-in-process": partial(in_process, elastic=ELASTIC),
    "elastic-vllm-kernels-in-process": partial(in_process, attention="vllm", elastic=ELASTIC),
    "torch-all-cores": torch_engine,
    "hf-generate": hf_generate,
}
