"""Paged attention: prefill chunks over their cached context, and a batch of decodes.

A decode reads much and computes little, so copying a request's blocks together first would
cost more than the attention itself. `DecodeAttention` therefore works block by block, in place:
every block has one owner, whose query it meets in one batched product; the partial softmax sums
of a request's blocks are then added up (flash-decoding with one split per block). Blocks that
requests of the batch share are copied for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import embedding_bag, scaled_dot_product_attention

from harness.engine.kv_cache import KvCache
from harness.engine.work import BatchWork

# Blocks in use, as a share of the cache's front that spans them, below which they are copied
# together first. A copy reads and writes what the products then read again, hence about a half.
COPY_BELOW = 0.5
KEPT_BYTES = 2**30  # the most that a batch's copies take from one step to the next, all layers


@dataclass(slots=True)
class ChunkAttention:
    """`num_tokens` new tokens of one request, standing at rows `start…` of the batch, which
    attend over the `context` tokens before them (in `blocks`) and causally over themselves."""

    start: int
    num_tokens: int
    context: int
    blocks: torch.Tensor  # covers context + num_tokens tokens

    def run(
        self, cache: KvCache, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """q, k, v: the batch's [tokens, heads, d], cache written. Gives [num_tokens, heads, d]."""
        rows = slice(self.start, self.start + self.num_tokens)
        query = q[rows].transpose(0, 1)
        if self.context == 0:
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
            out = scaled_dot_product_attention(
                query[None], keys[None], values[None], is_causal=True, enable_gqa=True
            )[0]
        else:
            total = self.context + self.num_tokens
            keys, values = (kv[:, :total] for kv in cache.read(layer, self.blocks))
            attend = _in_two_parts if q.device.type == "cpu" else _masked
            out = attend(query, keys, values, self.context)
        return out.transpose(0, 1)


def _in_two_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int) -> torch.Tensor:
    """Attends over the context without a mask, over the chunk causally, and joins both by their
    log-sum-exps.

    q: [heads, n, d]; k, v: [kv_heads, context + n, d]. On a CPU a mask costs more than half of
    the time of attention, and the first part need not repeat K and V for each query head.
    """
    heads, n, head_dim = q.shape
    group = heads // len(k)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    grouped = q.reshape(1, len(k), group * n, head_dim)
    before, before_lse = flash(grouped, k[None, :, :context], v[None, :, :context])
    own_k, own_v = (x[None, :, context:].repeat_interleave(group, 1) for x in (k, v))
    own, own_lse = flash(q[None], own_k, own_v, is_causal=True)
    share = torch.sigmoid(before_lse.reshape(heads, n) - own_lse[0])[..., None]
    return torch.lerp(own[0], before.reshape(heads, n, head_dim), share.to(q.dtype))


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, context: int) -> torch.Tensor:
    """Attends as `_in_two_parts`, in one call with a mask: chunk token i sees context + i
    tokens."""
    columns = torch.arange(k.shape[1], device=q.device)
    mask = columns <= context + torch.arange(q.shape[1], device=q.device)[:, None]
    return scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, enable_gqa=True)[
        0
    ]


class DecodeAttention:
    """One new token for each of n requests, over as many steps as their blocks allow.

    Rows: the blocks that the products see, in place (row = block id) or, where the batch's
    blocks lie scattered, copied together in the order of their first use. Rows beyond those
    in use are never read. On a CPU, up to KEPT_BYTES, a layer's copy stays for all steps, and each
    step's tokens are added to it: copying anew took 15 to 40 % of a step.
    """

    def __init__(
        self, cache: KvCache, positions: npt.NDArray[np.int64], blocks: Sequence[Sequence[int]],
        device: torch.device,
    ) -> None:  # fmt: skip
        """`positions`: of each request's new token at the first step. `blocks`: every block that
        a request writes to in any of the steps, in token order."""
        self._cache, self._device = cache, device
        self._size = cache.block_tokens
        self._position = positions.copy()
        self._table = np.zeros((len(blocks), max(map(len, blocks))), np.int64)
        for table, ids in zip(self._table, blocks, strict=True):
            table[: len(ids)] = ids
        self._rows_table, self._copied = self._assign_rows()
        num_copied = 0 if self._copied is None else len(self._copied)
        copied_bytes = 2 * len(cache.keys) * num_copied * cache.keys[0][0].nbytes
        self._keeps = device.type == "cpu" and copied_bytes <= KEPT_BYTES
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # layer -> its copies
        self._last_row = np.maximum.accumulate(self._rows_table, axis=1)
        self._start_rows()

    def _assign_rows(self) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """The table in terms of rows, and the blocks to copy to these rows (None: in place)."""
        need = np.arange(self._table.shape[1]) * self._size - self._position[:, None]
        in_use = self._table[need <= 0]
        dense = np.count_nonzero(in_use) >= COPY_BELOW * in_use.max()
        own = len(np.unique(in_use)) == len(in_use)
        if dense and own and self._cache.in_one_piece:
            return self._table, None
        order = np.argsort(
            np.where(self._table > 0, need, need.max() + 1), axis=None, kind="stable"
        )
        order = order[: np.count_nonzero(self._table)]
        rows = np.zeros_like(self._table)
        rows.flat[order] = np.arange(1, len(order) + 1)
        blocks = np.concatenate([[0], self._table.flat[order]])
        return rows, torch.from_numpy(blocks).to(self._device)

    def _start_rows(self) -> None:
        """Each row's owner, and what it adds to a score: 0 at a token, -inf at a free place."""
        num_rows = int(self._rows_table.max()) + 1
        owner = np.zeros(num_rows, np.int64)
        filled = np.zeros(num_rows, np.int64)  # tokens
        widths = np.arange(self._table.shape[1]) * self._size
        owner[self._rows_table] = np.arange(len(self._table))[:, None]
        filled[self._rows_table] = np.clip(self._position[:, None] - widths, 0, self._size)
        places = np.arange(self._size)
        bias = np.where(places < filled[:, None], 0.0, -np.inf).astype(np.float32)
        self._owner = torch.from_numpy(owner).to(self._device)
        self._bias = torch.from_numpy(bias).to(self._device)[:, None, :]
        self._requests = np.arange(len(self._table))

    def begin_step(self) -> torch.Tensor:
        """Makes room for each request's next token and returns the cache rows to write it to."""
        column, offset = np.divmod(self._position, self._size)
        at = self._rows_table[self._requests, column]
        self._new = torch.from_numpy(at).to(self._device), torch.from_numpy(offset).to(self._device)
        self._bias[self._new[0], 0, self._new[1]] = 0.0
        self._num_rows = int(self._last_row[self._requests, column].max()) + 1
        self._width = int(column.max()) + 1
        table = self._rows_table[:, : self._width].copy()
        # A row that is only written to later must not be read: its turn has not come.
        begun = np.arange(self._width) <= column[:, None]
        table[~begun] = 0
        self._flat = torch.from_numpy(table.ravel()).to(self._device)
        self._own = torch.from_numpy(table[begun]).to(self._device)
        starts = np.concatenate([[0], np.cumsum(column + 1)[:-1]])
        self._starts = torch.from_numpy(starts).to(self._device)
        self._position += 1
        blocks = torch.from_numpy(self._table[self._requests, column]).to(self._device)
        return self._cache.rows(blocks, self._new[1])

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: [n, heads, d] with the cache written. Returns [n, heads, d] in q's dtype."""
        n, heads, head_dim = q.shape
        rows, size, width = self._num_rows, self._size, self._width
        keys, values = self._blocks(layer, k, v)
        kv_heads = keys.shape[1]
        owner, flat = self._owner[:rows], self._flat

        queries = (q * head_dim**-0.5).index_select(0, owner)
        queries = queries.view(rows * kv_heads, heads // kv_heads, head_dim)
        scores = torch.bmm(queries, keys.view(-1, size, head_dim).transpose(1, 2))
        scores = scores.view(rows, heads, size).float().add_(self._bias[:rows])
        top = scores.amax(-1).index_select(0, flat).view(n, width, heads).amax(1)
        scores.sub_(top.index_select(0, owner)[..., None]).exp_()
        total = self._summed(scores.sum(-1))

        weights = scores.to(q.dtype).view(rows * kv_heads, heads // kv_heads, size)
        partial = torch.bmm(weights, values.view(-1, size, head_dim)).view(rows, -1)
        out = self._summed(partial.float()).view(n, heads, head_dim)
        return (out / total[..., None]).to(q.dtype)

    def _summed(self, of_rows: torch.Tensor) -> torch.Tensor:
        """[rows, k] to [n, k]: each request's own rows added up. Not padded to the longest request,
        which would make one long context as dear as if all were."""
        return embedding_bag(self._own, of_rows, self._starts, mode="sum")

    def _blocks(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows in use, [rows, kv_heads, block_tokens, d] each."""
        cached = self._cache.keys[layer], self._cache.values[layer]
        if self._copied is None:
            keys, values = cached
        elif not self._keeps:
            keys, values = (x.index_select(0, self._copied[: self._num_rows]) for x in cached)
        elif layer not in self._kept:
            keys, values = self._kept[layer] = self._copy(cached[0]), self._copy(cached[1])
        else:
            keys, values = self._kept[layer]
            rows, offsets = self._new
            keys[rows, :, offsets], values[rows, :, offsets] = k, v
        return keys[: self._num_rows], values[: self._num_rows]

    def _copy(self, cached: torch.Tensor) -> torch.Tensor:
        """Copies all rows; a row without a token yet is zeros."""
        assert self._copied is not None
        copy = cached.new_empty((len(self._copied), *cached.shape[1:]))
        torch.index_select(cached, 0, self._copied[: self._num_rows], out=copy[: self._num_rows])
        copy[self._num_rows :].zero_()
        return copy


class CacheAttention:
    """The new tokens of some requests over one cache, which gets their keys and values first:
    chunk tokens, then one token for each decode."""

    def __init__(
        self, cache: KvCache, rows: torch.Tensor, chunks: Sequence[ChunkAttention],
        decode: DecodeAttention | None, num_chunk_tokens: int,
    ) -> None:  # fmt: skip
        """`rows`: where the cache keeps the tokens, from KvCache.rows."""
        self._cache, self._rows = cache, rows
        self._chunks, self._decode = chunks, decode
        self._num_chunk_tokens = num_chunk_tokens

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """q, k, v: [tokens, heads, d]. Gives [tokens, heads, d]."""
        self._cache.write(layer, self._rows, k, v)
        parts = [chunk.run(self._cache, layer, q, k, v) for chunk in self._chunks]
        if self._decode is not None:
            new = (x[self._num_chunk_tokens :] for x in (q, k, v))
            parts.append(self._decode.run(layer, *new))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def advance(self) -> None:
        """The next iteration of a batch of decodes."""
        assert self._decode is not None, "chunks run for one iteration"
        self._rows = self._decode.begin_step()


def cache_attention(cache: KvCache, batch: BatchWork, device: torch.device) -> CacheAttention:
    attentions, rows, start, size = [], [], 0, cache.block_tokens
    for (context, num_tokens, _), blocks in zip(batch.chunks, batch.blocks, strict=False):
        total = context + num_tokens
        ids = torch.tensor(blocks[: -(-total // size)], dtype=torch.int64, device=device)
        attentions.append(ChunkAttention(start, num_tokens, context, ids))
        at = torch.arange(context, total, device=device)
        rows.append(cache.rows(ids.index_select(0, at // size), at % size))
        start += num_tokens
    decode = None
    if batch.decodes:
        positions = np.array(batch.decodes, np.int64)
        decode = DecodeAttention(cache, positions, batch.blocks[len(batch.chunks) :], device)
        rows.append(decode.begin_step())
    return CacheAttention(cache, torch.cat(rows), attentions, decode, start)
