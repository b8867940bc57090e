"""Runs batches on one device: builds an iteration's tensors, runs layers, picks tokens.

Lives in the worker process but needs none: tests drive it directly. Knows block ids and token
ids but no requests, no pool and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import pad

from harness.engine.attention import ChunkAttention, DecodeAttention
from harness.engine.kv_cache import KvCache
from harness.engine.linear import Layer
from harness.engine.model import Decoder, Step
from harness.engine.work import ChunkWork, DecodeWork
from harness.model_spec import ModelSpec


class Runner:
    """`layers` are those on the device now; they may come and go between batches."""

    def __init__(
        self, spec: ModelSpec, decoder: Decoder, layers: Mapping[int, Layer], cache: KvCache,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._spec, self.device = spec, device
        self._decoder, self._layers, self._cache = decoder, layers, cache

    def steps(
        self, chunks: Sequence[ChunkWork], decodes: Sequence[DecodeWork], max_steps: int
    ) -> Iterator[list[int]]:
        """Yields each iteration's picked ids: of the chunks that sample, then of the decodes.
        With chunks, `max_steps` is 1. The caller may stop taking iterations at any time."""
        with torch.inference_mode():
            ids = np.array(
                [i for chunk in chunks for i in chunk.ids] + [d.token_id for d in decodes], np.int64
            )
            step, sampled = self.build(chunks, decodes)
            tokens = torch.from_numpy(ids).to(self.device)
            for index in range(max_steps):
                if index:
                    self._advance(step)
                hidden = self.forward(self.embed(tokens, step), step, 0, self._spec.num_layers)
                tokens = self.pick(hidden if sampled is None else hidden[self._padded(sampled)])
                tokens = tokens[: len(decodes) if sampled is None else len(sampled)]
                yield tokens.tolist()

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        """`ids`: of the step's tokens. Gives their rows and those of padding."""
        return self._decoder.embed(pad(ids, (0, step.num_padding_rows)))

    def forward(self, hidden: torch.Tensor, step: Step, lo: int, hi: int) -> torch.Tensor:
        """Layers [lo, hi) of one iteration; KeyError where one of them is not loaded."""
        layers = [(index, self._layers[index]) for index in range(lo, hi)]
        return self._decoder.layers(hidden, layers, step, self._cache)

    def pick(self, hidden: torch.Tensor) -> torch.Tensor:
        """Greedy: the id of each row's largest logit."""
        return self._decoder.logits(hidden).argmax(-1)

    def build(
        self, chunks: Sequence[ChunkWork], decodes: Sequence[DecodeWork]
    ) -> tuple[Step, torch.Tensor | None]:
        """An iteration's tensors, and the rows to pick tokens for (None: all)."""
        attentions, positions, rows, sampled = [], [], [], []
        start = 0
        for chunk in chunks:
            attention = self._chunk(chunk, start)
            at = torch.arange(chunk.context, chunk.context + len(chunk.ids), device=self.device)
            size = self._cache.block_tokens
            blocks = attention.blocks.index_select(0, at // size)
            rows.append(self._cache.rows(blocks, at % size))
            positions.append(at)
            attentions.append(attention)
            start += len(chunk.ids)
            if chunk.samples:
                sampled.append(start - 1)
        decode = None
        if decodes:
            at_numpy = np.array([decode.position for decode in decodes], np.int64)
            decode = DecodeAttention(
                self._cache, at_numpy, [decode.blocks for decode in decodes], self.device
            )
            rows.append(decode.begin_step())
            positions.append(torch.from_numpy(at_numpy).to(self.device))
            sampled += range(start, start + len(decodes))
        places = torch.cat(positions)
        padded = self._padded(places)
        num_padding = len(padded) - len(places)
        step = Step(padded, torch.cat(rows), attentions, decode, start, num_padding)
        if not chunks:
            return step, None
        return step, torch.tensor(sampled, dtype=torch.int64, device=self.device)

    def _padded(self, rows: torch.Tensor) -> torch.Tensor:
        """[n] -> [n + padding_rows(n)], with zeros; on a GPU nothing generates code by rows."""
        if self.device.type != "cpu":
            return rows
        return pad(rows, (0, padding_rows(len(rows))))

    def _advance(self, step: Step) -> None:
        """The next iteration of a batch of decodes."""
        assert step.decode is not None, "chunks run for one iteration"
        step.positions += 1
        step.rows = step.decode.begin_step()

    def _chunk(self, chunk: ChunkWork, start: int) -> ChunkAttention:
        num_tokens, total = len(chunk.ids), chunk.context + len(chunk.ids)
        blocks = chunk.blocks[: -(-total // self._cache.block_tokens)]
        return ChunkAttention(
            start, num_tokens, chunk.context,
            torch.tensor(blocks, dtype=torch.int64, device=self.device),
        )  # fmt: skip


def padding_rows(num_rows: int) -> int:
    """Rows to add so that few numbers of rows occur: 16 to an octave, so 6 % more at most.

    oneDNN generates code for every number of rows that it meets: 1.5 to 2.5 ms for a model of four
    layers and one core here, against 10 ms for an iteration of 200 tokens.
    """
    granule = max(1, (1 << num_rows.bit_length()) // 32)
    return -num_rows % granule
