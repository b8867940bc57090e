"""The kernels that need torch alone, on a CPU and on a GPU: the default, and what tests compare
others with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import rms_norm

from harness.engine.attention import cache_attentions
from harness.engine.kernels import BatchAttention, Linear, Rotation
from harness.engine.kv_cache import KvCache
from harness.engine.linear import TorchLinear, packed
from harness.engine.weights import torch_dtype
from harness.engine.work import BatchWork, Blocks
from harness.model_spec import ModelSpec


class TorchKernels:
    """Answers `Kernels`."""

    name: str = "torch"

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._epsilon, self._device = spec.rms_norm_eps, device
        cos, sin = rotary_tables(spec)
        # The first half of sin negated, see `rotate`.
        sin = torch.cat((-sin, sin), -1)
        dtype = torch_dtype(spec)
        self._cos = torch.cat((cos, cos), -1).to(device, dtype)
        self._sin = sin.to(device, dtype)

    def attentions(
        self, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks]
    ) -> Sequence[BatchAttention]:
        return cache_attentions(cache, batch, tables, self._device)

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        return TorchLinear(packed(weight), bias)

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden, weight.shape, weight, self._epsilon)

    def rotation(self, positions: torch.Tensor) -> Rotation:
        cos = self._cos.index_select(0, positions)[:, None]
        sin = self._sin.index_select(0, positions)[:, None]
        return lambda heads: rotate(heads, cos, sin)


def rotary_tables(spec: ModelSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [max_position, head_dim / 2] in float32 (RoFormer, Hugging Face's half-split
    layout)."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    angles = torch.outer(torch.arange(spec.max_position).float(), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions: the halves of a head are swapped and the sign of the rotation sits in
    `sin`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
