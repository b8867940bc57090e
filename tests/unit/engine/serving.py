"""Small models and an in-process stand-in for a worker: the engine without its processes."""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.device.block_pool import BlockPool
from harness.device.caching_pool import CachingPool
from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import BlockTables, SlabTables
from harness.engine.kv_cache import new_cache
from harness.engine.kv_memory import KvMemory
from harness.engine.layout import model_in, write_model
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.node_files import OpenFile
from harness.engine.runner import Runner
from harness.engine.tokens import TokenBook
from harness.engine.transport import DECODE, ENCODE, of_kind
from harness.engine.work import BatchWork
from harness.model_spec import ModelSpec
from harness.pooled.blocks import SlabPool, device_shape
from harness.pooled.plan import MemoryPlan
from harness.pooled.slab import SlabAllocator
from harness.request import Batch, Request

SPEC = ModelSpec(
    name="test",
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=96,
    mlp_matrices=3,
    vocab_size=512,
    max_position=256,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    qkv_bias=False,
    tie_embeddings=False,
    dtype="float32",
    tp=1,
    path=None,
    seed=0,
)
# What SPEC is in each family. Heads of Qwen3 are wider than the hidden size shared out to them.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "tied": {"tie_embeddings": True},
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3_moe": {"family": "qwen3_moe", "num_experts": 8, "num_experts_per_token": 3},
    "mixtral": {"family": "mixtral", "num_experts": 4, "num_experts_per_token": 2},
    "opt": {
        "family": "opt", "mlp_matrices": 2, "qkv_bias": True, "num_kv_heads": 4,
        "tie_embeddings": True,
    },
}  # fmt: skip
CPU = torch.device("cpu")


def spec_like(directory: Path, **changes: object) -> ModelSpec:
    return replace(SPEC, path=str(directory), **changes)


def loaded(spec: ModelSpec, attention: str = "torch", rank: int = 0) -> LoadedLayers:
    return LoadedLayers(spec, CPU, kernels_of(attention, spec, CPU).linear, rank)


def runner_of(
    layers: LoadedLayers, spec: ModelSpec, num_blocks: int = 64, block_tokens: int = 8,
    attention: str = "torch", kind: type[Runner] = Runner,
) -> Runner:  # fmt: skip
    cache = new_cache(spec, num_blocks, block_tokens, CPU)
    decoder = TransformerDecoder(spec, layers.ends, kernels_of(attention, spec, CPU))
    return kind(spec, decoder, layers.on_device, cache, CPU)


def in_flat_buffer(spec: ModelSpec) -> torch.Tensor:
    """The model as a pooled worker has it, from a file of the model cache."""
    with tempfile.TemporaryFile() as file:
        write_model(spec, [OpenFile(file.fileno())])
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


class Server:
    """A pool, block tables and a token book around a runner."""

    def __init__(
        self, runner: Runner, pool: BlockPool, tables: BlockTables | SlabTables, vocab_size: int
    ) -> None:
        self.runner, self.pool, self.tables, self.vocab_size = runner, pool, tables, vocab_size
        self.book = TokenBook(seed=0)

    def execute(self, batch: Batch, max_steps: int = 1) -> None:
        """What `TorchInstance.execute` does, in this process; the pool has been grown."""
        self.tables.reconcile(batch.requests)
        work = self.book.work(batch, self.vocab_size)
        work.blocks = [self.tables.ids[request.request_id] for request in batch.requests]
        for tokens in self.runner.steps(of_kind(BatchWork, DECODE(ENCODE(work))), max_steps):
            self.book.count(batch, tokens)
        for request in batch.requests:
            if request.finished:
                self.pool.release(request)

    def evict(self, request: Request) -> None:
        self.pool.release(request)
        request.computed_tokens = 0

    def serve_at_random(self, requests: list[Request], rng: np.random.Generator) -> None:
        """Until all have finished: random subsets, chunk sizes, run lengths and preemptions."""
        while unfinished := [r for r in requests if not r.finished]:
            if rng.random() < 0.1:
                self.evict(unfinished[rng.integers(len(unfinished))])
            batch, max_steps = Batch(), int(rng.integers(1, 6))
            for request in rng.permutation(np.array(unfinished, object)):
                left = request.known_tokens - request.computed_tokens
                num_tokens = int(rng.integers(1, left + 1))
                if rng.random() < 0.2:
                    continue
                if not self.pool.grow(request, request.computed_tokens + num_tokens):
                    continue
                if request.decoding:
                    batch.decodes.append(request)
                else:
                    batch.chunks.append((request, num_tokens))
            if not batch.requests:
                self.evict(unfinished[0])
                continue
            if batch.chunks:
                max_steps = 1
            else:
                limit = min(r.remaining_tokens for r in batch.decodes)
                max_steps = self.pool.growth_steps(batch.decodes, min(limit, max_steps))
                for request in batch.decodes:
                    assert self.pool.grow(request, request.computed_tokens + max_steps)
            self.execute(batch, max_steps)
            self.pool.check()


def paged(
    layers: LoadedLayers, spec: ModelSpec, num_blocks: int, block_tokens: int,
    attention: str = "torch",
) -> Server:  # fmt: skip
    """As a worker with one model for good has it."""
    pool = CachingPool(num_blocks, block_tokens)
    runner = runner_of(layers, spec, num_blocks, block_tokens, attention)
    return Server(runner, pool, BlockTables(pool), spec.vocab_size)


def slabbed(
    buffer: torch.Tensor, spec: ModelSpec, num_blocks: int, block_tokens: int,
    attention: str = "torch",
) -> Server:  # fmt: skip
    """As a pooled worker has it: weights in a flat buffer, KV in slabs that whole blocks do not
    fill, between those of another shape."""
    shape = device_shape(spec, block_tokens)
    other = device_shape(replace(spec, num_layers=1, num_kv_heads=1), block_tokens)
    slab_bytes = 3 * shape.block_bytes // 2
    slabs = SlabAllocator(2 * num_blocks * slab_bytes, slab_bytes)
    ours: list[int] = []
    for _ in range(num_blocks):  # every other slab
        slabs.alloc(other, slab_bytes // other.block_bytes)
        ours += slabs.alloc(shape, 1)
    slabs.free(ours)
    pool = SlabPool(slabs, shape)
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        plan = MemoryPlan(0, slabs.num_slabs * slab_bytes, slab_bytes, block_tokens)
        memory = KvMemory(plan, [spec], file.fileno(), mmap.PAGESIZE, CPU)
    ends, layers = model_in(buffer, spec, 0)
    cache = memory.cache(spec)
    decoder = TransformerDecoder(spec, ends, kernels_of(attention, spec, CPU))
    runner = Runner(spec, decoder, layers, cache, CPU)
    return Server(runner, pool, SlabTables(pool, slab_bytes), spec.vocab_size)
