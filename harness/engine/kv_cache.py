"""The KV cache's tensors: per layer, keys and values in fixed-size blocks (SOSP'23 §4).

A block holds `block_tokens` tokens of one layer as [kv_heads, block_tokens, head_dim], so that
attention multiplies whole blocks where they lie. Block 0 is padding and never written.
Knows nothing of requests: callers say which blocks.
"""

from __future__ import annotations

import torch

from harness.cluster import ModelSpec
from harness.engine.block_tables import FIRST_BLOCK


class KvCache:
    """keys[layer] and values[layer]: [FIRST_BLOCK + num_blocks, kv_heads, block_tokens, head_dim].

    Zeroed at the start: attention also multiplies blocks that it then masks out, and a masked
    NaN would still be a NaN.
    """

    def __init__(
        self, spec: ModelSpec, num_blocks: int, block_tokens: int, device: torch.device
    ) -> None:
        self.block_tokens = block_tokens
        self._num_kv_heads = spec.num_kv_heads
        shape = (FIRST_BLOCK + num_blocks, spec.num_kv_heads, block_tokens, spec.head_dim)
        options = {"dtype": getattr(torch, spec.dtype), "device": device}
        self.keys = [torch.zeros(shape, **options) for _ in range(spec.num_layers)]
        self.values = [torch.zeros(shape, **options) for _ in range(spec.num_layers)]
        self._head_rows = torch.arange(spec.num_kv_heads, device=device) * block_tokens

    def rows(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Where tokens at (block, offset in it) lie: row indices for `write`, token-major."""
        first = blocks * (self._num_kv_heads * self.block_tokens) + offsets
        return (first[:, None] + self._head_rows).flatten()

    def write(self, layer: int, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Stores k and v, [tokens, kv_heads, head_dim], at `rows`."""
        head_dim = k.shape[-1]
        self.keys[layer].view(-1, head_dim).index_copy_(0, rows, k.reshape(-1, head_dim))
        self.values[layer].view(-1, head_dim).index_copy_(0, rows, v.reshape(-1, head_dim))

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values in `blocks`: [kv_heads, len(blocks) * block_tokens, d]."""
        k = self.keys[layer].index_select(0, blocks).transpose(0, 1)
        v = self.values[layer].index_select(0, blocks).transpose(0, 1)
        return k.flatten(1, 2), v.flatten(1, 2)


def block_bytes(spec: ModelSpec, block_tokens: int) -> int:
    """What one block id costs over all layers."""
    return spec.kv_bytes_per_token * block_tokens
