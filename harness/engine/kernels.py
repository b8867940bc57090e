"""What a step needs of its kernels: the seam behind `engine.attention`.

`torch_kernels.py`, `vllm_kernels.py` and `flash_kernels.py` have it; `attention_choice.py` says
which one a run gets. Everything else of the engine sees these protocols alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from harness.engine.kv_cache import KvCache
from harness.engine.work import BatchWork, Blocks

# Query and key heads [tokens, heads, head_dim] to the same, rotated; it may write to what it gets.
Rotation = Callable[[torch.Tensor], torch.Tensor]


class BatchAttention(Protocol):
    """The new tokens of one batch over one cache, which gets their keys and values first: chunk
    tokens, then one token for each decode."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """q, k, v: [tokens, heads, head_dim]. Gives [tokens, heads, head_dim]."""

    def advance(self) -> None:
        """The next iteration of a batch of decodes, here and for those made beside it."""


class Linear(Protocol):
    """y = x Wᵀ + bias, if it has one. x: [rows, in]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x Wᵀ + bias."""


MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]  # of a weight and a bias


class Kernels(Protocol):
    """The kernels of one model on one device."""

    @property
    def name(self) -> str:
        """What a run's manifest says."""

    def attentions(
        self, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks]
    ) -> Sequence[BatchAttention]:
        """The attention of `batch`, whose KV of these and earlier tokens is in `cache`: one for
        each of `tables`, the blocks that it has in some of the layers. They advance together. All
        of a cache's blocks are written and read by the same kernels: they differ in how keys lie
        in a block."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """The product with a weight [out, in], which may be packed to a copy."""

    def norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last dimension."""

    def rotation(self, positions: torch.Tensor) -> Rotation:
        """Rotary embeddings of tokens at `positions`, [tokens] int64."""
