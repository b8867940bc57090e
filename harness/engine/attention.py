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

from harness.engine.kv_cache import KvCache, table
from harness.engine.work import BatchWork, Blocks

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


class DecodeSteps:
    """Where one new token for each of n requests stands, over as many steps as their blocks allow:
    the same in all layers.

    Rows: the blocks that the products see, in place (row = block id) or, where the batch's blocks
    lie scattered or differ by layer, copied together in the order of their first use. Rows beyond
    those in use are never read.
    """

    def __init__(
        self, cache: KvCache, positions: npt.NDArray[np.int64], tables: Sequence[Blocks],
        device: torch.device,
    ) -> None:  # fmt: skip
        """`positions`: of each request's new token at the first step. `tables`: every block that
        a request writes to in any of the steps, in token order."""
        self.cache, self._device, self._size = cache, device, cache.block_tokens
        self._position, self._requests = positions.copy(), np.arange(len(positions))
        self._tables = np.stack([table(blocks) for blocks in tables])
        self._rows_table, self.copied = self._assign_rows()
        self._last_row = np.maximum.accumulate(self._rows_table, axis=1)
        self._start_rows()
        self.begin()

    def _assign_rows(self) -> tuple[npt.NDArray[np.int64], torch.Tensor | None]:
        """The tables in terms of rows, and of each table the blocks to copy to these rows (None: in
        place)."""
        ids = self._tables[0]
        need = np.arange(ids.shape[1]) * self._size - self._position[:, None]
        in_use = ids[need <= 0]
        dense = np.count_nonzero(in_use) >= COPY_BELOW * in_use.max()
        own = len(np.unique(in_use)) == len(in_use)
        if len(self._tables) == 1 and dense and own and self.cache.in_one_piece:
            return ids, None
        order = np.argsort(np.where(ids > 0, need, need.max() + 1), axis=None, kind="stable")
        order = order[: np.count_nonzero(ids)]
        rows = np.zeros_like(ids)
        rows.flat[order] = np.arange(1, len(order) + 1)
        blocks = np.pad(self._tables.reshape(len(self._tables), -1)[:, order], ((0, 0), (1, 0)))
        return rows, torch.from_numpy(blocks).to(self._device)

    def _start_rows(self) -> None:
        """Each row's owner, and what it adds to a score: 0 at a token, -inf at a free place."""
        num_rows = int(self._rows_table.max()) + 1
        owner = np.zeros(num_rows, np.int64)
        filled = np.zeros(num_rows, np.int64)  # tokens
        widths = np.arange(self._rows_table.shape[1]) * self._size
        owner[self._rows_table] = self._requests[:, None]
        filled[self._rows_table] = np.clip(self._position[:, None] - widths, 0, self._size)
        places = np.arange(self._size)
        bias = np.where(places < filled[:, None], 0.0, -np.inf).astype(np.float32)
        self.owner = torch.from_numpy(owner).to(self._device)
        self.bias = torch.from_numpy(bias).to(self._device)[:, None, :]

    def begin(self) -> None:
        """Makes room for each request's next token. `cache_rows`: where that goes, by table."""
        column, offset = np.divmod(self._position, self._size)
        at = self._rows_table[self._requests, column]
        self.new = torch.from_numpy(at).to(self._device), torch.from_numpy(offset).to(self._device)
        self.bias[self.new[0], 0, self.new[1]] = 0.0
        self.num_rows = int(self._last_row[self._requests, column].max()) + 1
        self.width = int(column.max()) + 1
        rows = self._rows_table[:, : self.width].copy()
        # A row that is only written to later must not be read: its turn has not come.
        begun = np.arange(self.width) <= column[:, None]
        rows[~begun] = 0
        self.flat = torch.from_numpy(rows.ravel()).to(self._device)
        self.own = torch.from_numpy(rows[begun]).to(self._device)
        starts = np.concatenate([[0], np.cumsum(column + 1)[:-1]])
        self.starts = torch.from_numpy(starts).to(self._device)
        self._position += 1
        blocks = torch.from_numpy(self._tables[:, self._requests, column]).to(self._device)
        self.cache_rows = self.cache.rows(blocks, self.new[1]).unbind()


class DecodeAttention:
    """One step's new tokens in the layers whose blocks are those of one of the `steps`' tables.

    On a CPU, up to KEPT_BYTES, a layer's copy stays for all steps, and each step's tokens are added
    to it: copying anew took 15 to 40 % of a step.
    """

    def __init__(self, steps: DecodeSteps, number: int) -> None:
        self.steps, self.number, self._cache = steps, number, steps.cache
        self._copied = None if steps.copied is None else steps.copied[number]
        num_copied, block = 0 if self._copied is None else len(self._copied), self._cache.keys[0][0]
        copied_bytes = 2 * len(self._cache.keys) * num_copied * block.nbytes
        self._keeps = block.device.type == "cpu" and copied_bytes <= KEPT_BYTES
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # layer -> its copies

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v: [n, heads, d] with the cache written. Returns [n, heads, d] in q's dtype."""
        n, heads, head_dim = q.shape
        rows, width = self.steps.num_rows, self.steps.width
        keys, values = self._blocks(layer, k, v)
        kv_heads, size = keys.shape[1:3]
        owner, flat = self.steps.owner[:rows], self.steps.flat

        queries = (q * head_dim**-0.5).index_select(0, owner)
        queries = queries.view(rows * kv_heads, heads // kv_heads, head_dim)
        scores = torch.bmm(queries, keys.view(-1, size, head_dim).transpose(1, 2))
        scores = scores.view(rows, heads, size).float().add_(self.steps.bias[:rows])
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
        return embedding_bag(self.steps.own, of_rows, self.steps.starts, mode="sum")

    def _blocks(
        self, layer: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the rows in use, [rows, kv_heads, block_tokens, d] each."""
        cached = self._cache.keys[layer], self._cache.values[layer]
        num_rows = self.steps.num_rows
        if self._copied is None:
            keys, values = cached
        elif not self._keeps:
            keys, values = (x.index_select(0, self._copied[:num_rows]) for x in cached)
        elif layer not in self._kept:
            keys, values = self._kept[layer] = self._copy(cached[0]), self._copy(cached[1])
        else:
            keys, values = self._kept[layer]
            rows, offsets = self.steps.new
            keys[rows, :, offsets], values[rows, :, offsets] = k, v
        return keys[:num_rows], values[:num_rows]

    def _copy(self, cached: torch.Tensor) -> torch.Tensor:
        """Copies all rows; a row without a token yet is zeros."""
        assert self._copied is not None
        copy = cached.new_empty((len(self._copied), *cached.shape[1:]))
        num_rows = self.steps.num_rows
        torch.index_select(cached, 0, self._copied[:num_rows], out=copy[:num_rows])
        copy[num_rows:].zero_()
        return copy


class CacheAttention:
    """The new tokens of some requests over one cache, which gets their keys and values first:
    chunk tokens, then one token for each decode."""

    def __init__(
        self, cache: KvCache, batch: BatchWork, blocks: Blocks, steps: DecodeSteps | None,
        number: int,
    ) -> None:  # fmt: skip
        """`blocks`: those of the table with this `number`, of the `steps`' too."""
        self._cache = cache
        self._chunks, self._chunk_rows, self._start, size = [], [], 0, cache.block_tokens
        for (context, num_tokens, _), mine in zip(batch.chunks, blocks, strict=False):
            total, device = context + num_tokens, cache.keys[0].device
            ids = torch.tensor(mine[: -(-total // size)], dtype=torch.int64, device=device)
            self._chunks.append(ChunkAttention(self._start, num_tokens, context, ids))
            at = torch.arange(context, total, device=device)
            self._chunk_rows.append(cache.rows(ids.index_select(0, at // size), at % size))
            self._start += num_tokens
        self._decode = None if steps is None else DecodeAttention(steps, number)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """q, k, v: [tokens, heads, d]. Gives [tokens, heads, d]."""
        self._cache.write(layer, self._cache_rows(), k, v)
        parts = [chunk.run(self._cache, layer, q, k, v) for chunk in self._chunks]
        if self._decode is not None:
            new = (x[self._start :] for x in (q, k, v))
            parts.append(self._decode.run(layer, *new))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def advance(self) -> None:
        assert self._decode is not None, "chunks run for one iteration"
        self._decode.steps.begin()

    def _cache_rows(self) -> torch.Tensor:
        """Where the cache keeps the new tokens."""
        if self._decode is None:
            return torch.cat(self._chunk_rows)
        rows = self._decode.steps.cache_rows[self._decode.number]
        return torch.cat((*self._chunk_rows, rows)) if self._chunk_rows else rows


def cache_attentions(
    cache: KvCache, batch: BatchWork, tables: Sequence[Blocks], device: torch.device
) -> list[CacheAttention]:
    """As `Kernels.attentions`."""
    steps = None
    if batch.decodes:
        decodes = [blocks[len(batch.chunks) :] for blocks in tables]
        steps = DecodeSteps(cache, np.array(batch.decodes, np.int64), decodes, device)
    return [CacheAttention(cache, batch, each, steps, i) for i, each in enumerate(tables)]
