"""The KV cache's tensors: per layer, keys and values in fixed-size blocks (SOSP'23 §4).

A block holds `block_tokens` tokens of one layer as [kv_heads, block_tokens, head_dim], so that
attention multiplies whole blocks where they lie. Block 0 is padding and never written.
Knows nothing of requests: callers say which blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.weights import torch_dtype
from harness.engine.work import Blocks
from harness.model_spec import ModelSpec


class KvCache:
    """keys[layer] and values[layer]: [FIRST_BLOCK + num_blocks, kv_heads, block_tokens, head_dim].

    Blocks need not lie next to each other, but all of `keys` and `values` have the same strides.
    They must never hold a NaN: attention also multiplies blocks that it then masks out, and a
    masked NaN would still be a NaN.
    """

    def __init__(self, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        self.keys, self.values = keys, values
        num_ids, kv_heads, self.block_tokens, head_dim = keys[0].shape
        self.num_blocks = num_ids - FIRST_BLOCK
        strides = keys[0].stride()
        # Whether (block, head) has one stride, so that blocks can be multiplied in place.
        self.in_one_piece = strides[0] == kv_heads * strides[1]
        self._block_rows = strides[0] // head_dim  # from a block to the next
        head_rows = strides[1] // head_dim
        self._head_rows = torch.arange(kv_heads, device=keys[0].device) * head_rows
        self._key_rows = [_rows(tensor) for tensor in keys]
        self._value_rows = [_rows(tensor) for tensor in values]

    def rows(self, blocks: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The rows where tokens at (block, offset in it) lie: indices for `write`, token-major. Of
        several tables' `blocks`, [tables, tokens], by table."""
        first = blocks * self._block_rows + offsets
        return (first[..., None] + self._head_rows).flatten(-2)

    def write(self, layer: int, rows: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Stores k and v, [tokens, kv_heads, head_dim], at `rows`."""
        head_dim = k.shape[-1]
        self._key_rows[layer].index_copy_(0, rows, k.reshape(-1, head_dim))
        self._value_rows[layer].index_copy_(0, rows, v.reshape(-1, head_dim))

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values in `blocks`: [kv_heads, len(blocks) * block_tokens, d]."""
        k = self.keys[layer].index_select(0, blocks).transpose(0, 1)
        v = self.values[layer].index_select(0, blocks).transpose(0, 1)
        return k.flatten(1, 2), v.flatten(1, 2)


def table(blocks: Blocks) -> npt.NDArray[np.int64]:
    """The block ids of each request, [requests, blocks], with zeros behind them."""
    lengths = np.array([len(ids) for ids in blocks])
    found = np.zeros((len(lengths), lengths.max()), np.int64)
    found[np.arange(found.shape[1]) < lengths[:, None]] = [i for ids in blocks for i in ids]
    return found


def _rows(blocks: torch.Tensor) -> torch.Tensor:
    """[rows, head_dim]: everything between the first block and the last, of other layers too."""
    num_blocks, kv_heads, block_tokens, head_dim = blocks.shape
    before = (num_blocks - 1) * blocks.stride(0) + (kv_heads - 1) * blocks.stride(1)
    num_rows = before // head_dim + block_tokens
    return blocks.as_strided((num_rows, head_dim), (head_dim, 1))


def new_cache(spec: ModelSpec, num_blocks: int, block_tokens: int, device: torch.device) -> KvCache:
    """A cache of its own, each layer's keys and values in one piece."""
    shape = (FIRST_BLOCK + num_blocks, spec.num_kv_heads, block_tokens, spec.head_dim)
    keys, values = (
        [torch.zeros(shape, dtype=torch_dtype(spec), device=device) for _ in range(spec.num_layers)]
        for _ in range(2)
    )
    return KvCache(keys, values)


def block_bytes(spec: ModelSpec, block_tokens: int) -> int:
    """What one block id costs over all layers."""
    return spec.kv_bytes_per_token * block_tokens
