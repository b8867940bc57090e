"""Small models and an in-process stand-in for a worker: the engine without its processes."""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.device.block_pool import BlockPool
from harness.device.caching_pool import CachingPool
from harness.elastic.device_layout import DeviceLayout, memory_for_blocks
from harness.elastic.page_pool import PagePool
from harness.elastic.page_tables import PageTables
from harness.engine.attention_choice import kernels_of
from harness.engine.block_tables import BlockTables, SlabTables
from harness.engine.config import TorchElasticConfig
from harness.engine.device_buffer import DeviceBuffer
from harness.engine.in_flight import InFlight
from harness.engine.kv_cache import new_cache
from harness.engine.kv_memory import KvMemory
from harness.engine.layout import model_in, write_model
from harness.engine.linear import LoadedLayers
from harness.engine.model import TransformerDecoder
from harness.engine.node_files import OpenFile
from harness.engine.paced_links import LinkPath
from harness.engine.runner import Runner
from harness.engine.tokens import TokenBook
from harness.engine.transport import DECODE, ENCODE, of_kind
from harness.engine.work import BatchWork, Part, StageWork
from harness.model_spec import ModelSpec
from harness.pooled.blocks import SlabPool, device_shape
from harness.pooled.plan import MemoryPlan
from harness.pooled.slab import Run, SlabAllocator
from harness.request import Batch, Request
from tests.accounts import audit

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
        self, runner: Runner, pool: BlockPool, tables: BlockTables | SlabTables | PageTables,
        vocab_size: int,
    ) -> None:  # fmt: skip
        self.runner, self.pool, self.tables, self.vocab_size = runner, pool, tables, vocab_size
        self.book = TokenBook(seed=0)

    def execute(self, batch: Batch, max_steps: int = 1) -> None:
        """What an instance's `execute` does, in this process; the pool has been grown."""
        self.tables.reconcile(batch.requests)
        work = self.book.work(batch, self.vocab_size)
        ids = [self.tables.ids[request.request_id] for request in batch.requests]
        for tokens in self.steps(work, ids, max_steps):
            self.book.count(batch, tokens)
        for request in batch.requests:
            if request.finished:
                self.pool.release(request)

    def steps(self, work: BatchWork, ids: Any, max_steps: int) -> Iterable[list[int]]:
        work.blocks = ids
        return self.runner.steps(of_kind(BatchWork, DECODE(ENCODE(work))), max_steps)

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
            audit(self.pool)


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
    ours: list[Run] = []
    for _ in range(num_blocks):  # every other slab
        slabs.alloc(slabs.pool(other), slab_bytes // other.block_bytes)
        ours += slabs.alloc(slabs.pool(shape), 1)
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


class _Jobs:
    """A worker's command loop without its process: jobs of all streams, in order."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._tokens: list[list[int]] = []
        self.put = self._jobs.append

    def stream(self, name: str) -> _Jobs:
        return self

    def begin(self, seq: int) -> threading.Event:
        return threading.Event()

    def answer(self, seq: int, *, last: bool = True, **values: Any) -> None:
        if not last:
            self._tokens.append(values["tokens"])

    def run(self) -> list[list[int]]:
        """The tokens of each step."""
        while self._jobs:
            self._jobs.popleft()()
        found, self._tokens[:] = [*self._tokens], []
        return found


class ElasticServer(Server):
    """Batches whose layers and KV are all on one elastic worker."""

    _number = 0
    _page_layers = 1

    def __init__(self, runner: Runner, pool: PagePool, tables: PageTables, spec: ModelSpec) -> None:
        super().__init__(runner, pool, tables, spec.vocab_size)
        config = TorchElasticConfig(
            paced=False, layer_s=0.0, token_s=0.0, chunk_bytes=1, host_kv_bytes=1
        )
        self._jobs: Any = _Jobs()
        nobody: Any = None
        self._in_flight = InFlight("own", runner, config, self._jobs, nobody)

    def steps(self, work: BatchWork, ids: Any, max_steps: int) -> list[list[int]]:
        self._number += 1
        everyone = [*range(len(work.chunks))], [*range(len(work.decodes))]
        groups = {g: [Part("own", *everyone, [pages[g] for pages in ids])] for g in ids[0]}
        stage = StageWork(
            self._number, work, range(self.runner.spec.num_layers), self._page_layers, max_steps,
            None, groups, previous=None, following=None, first="own",
            following_path=LinkPath({}, None, 0.0), holder_paths={},
        )  # fmt: skip
        self._in_flight.at_once["stage"](DECODE(ENCODE({"work": stage, "seq": self._number})))
        tokens: list[list[int]] = self._jobs.run()
        return tokens


def elastic(
    spec: ModelSpec, num_blocks: int, block_tokens: int, attention: str = "torch"
) -> ElasticServer:
    """As an elastic worker has it, each layer's KV in pages of its own."""
    memory_bytes = memory_for_blocks(spec, block_tokens, num_blocks)
    layout = DeviceLayout(spec, memory_bytes, block_tokens, ElasticServer._page_layers)
    kernels = kernels_of(attention, spec, CPU)
    buffer = DeviceBuffer(layout, CPU, kernels.linear)
    buffer.fill(range(spec.num_layers))
    decoder = TransformerDecoder(spec, buffer.ends, kernels)
    runner = Runner(spec, decoder, buffer.layers, buffer.cache, CPU)
    pool = PagePool(layout.num_pages(), block_tokens, layout.num_groups)
    return ElasticServer(runner, pool, PageTables(pool, layout.pages(()), 0), spec)


def served(memory: str, layers: LoadedLayers, buffer: torch.Tensor, *how: Any) -> Server:
    """Of the `memory` named, by the function of that name."""
    if memory == "elastic":
        return elastic(*how)
    return paged(layers, *how) if memory == "paged" else slabbed(buffer, *how)
