"""Runs batches on one device: builds an iteration's tensors, runs layers, picks tokens.

Lives in the worker process but needs none: tests drive it directly. Knows block ids and token
ids but no requests, no pool and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import pad

from harness.engine.cuda import finish
from harness.engine.kernels import BatchAttention
from harness.engine.kv_cache import KvCache
from harness.engine.linear import Layer
from harness.engine.model import Attend, Step, TransformerDecoder
from harness.engine.padding import padded
from harness.engine.work import BatchWork, Blocks
from harness.model_spec import ModelSpec


class Runner:
    """`layers` are those on the device now; they may come and go between batches."""

    def __init__(
        self, spec: ModelSpec, decoder: TransformerDecoder, layers: Mapping[int, Layer],
        cache: KvCache, device: torch.device,
    ) -> None:  # fmt: skip
        self.spec, self.device = spec, device
        self._decoder, self._cache = decoder, cache
        self.layers = layers

    def steps(self, batch: BatchWork, max_steps: int) -> Iterator[list[int]]:
        """Yields each iteration's picked ids: of the chunks that sample, then of the decodes.
        With chunks, `max_steps` is 1. The caller may stop taking iterations at any time."""
        with torch.inference_mode():
            attend = self.attention(batch)
            step, sampled = self.step(batch, attend)
            tokens = torch.from_numpy(np.array(batch.ids, np.int64)).to(self.device)
            for index in range(max_steps):
                if index:
                    step.positions += 1
                    attend.advance()
                hidden = self.forward(self.embed(tokens, step), step, 0, self.spec.num_layers)
                tokens = self.picked(hidden, sampled)[: num_sampled(batch)]
                finish(self.device)  # nothing waits for tokens where no chunk samples
                yield tokens.tolist()

    def agreed(self, ends: bool) -> bool:
        """Whether a batch `ends` before its last step; of several ranks the first one decides."""
        return ends

    def attention(self, batch: BatchWork) -> BatchAttention:
        """The attention of all of `batch`, whose KV is here, in all layers in the same blocks."""
        return self.attentions(batch, [batch.blocks])[0]

    def attentions(self, batch: BatchWork, tables: Sequence[Blocks]) -> Sequence[BatchAttention]:
        """The same where layers differ: one for each of `tables`, as `Kernels.attentions`."""
        return self._decoder.kernels.attentions(self._cache, batch, tables)

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        """`ids`: of the step's tokens. Gives their rows and those of padding."""
        return self._decoder.embed(pad(ids, (0, step.num_padding_rows)), step.positions)

    def forward(self, hidden: torch.Tensor, step: Step, lo: int, hi: int) -> torch.Tensor:
        """Layers [lo, hi) of one iteration; KeyError where one of them is not loaded."""
        layers = [(index, self.layers[index]) for index in range(lo, hi)]
        return self._decoder.layers(hidden, layers, step)

    def step(self, batch: BatchWork, attend: Attend) -> tuple[Step, torch.Tensor | None]:
        """An iteration of `batch`, which attends by `attend`; the rows to pick tokens for (None:
        all)."""
        chunks, num_decodes = batch.chunks, len(batch.decodes)
        spans = [np.arange(c.context, c.context + c.num_tokens, dtype=np.int64) for c in chunks]
        places = np.concatenate([*spans, np.array(batch.decodes, np.int64)])
        ends = np.cumsum([c.num_tokens for c in chunks], dtype=np.int64)
        sampled = [int(end) - 1 for end, c in zip(ends, chunks, strict=True) if c.samples]
        sampled += range(len(places) - num_decodes, len(places))
        positions = padded(torch.from_numpy(places).to(self.device))
        step = Step(positions, attend, len(positions) - len(places))
        if not chunks:
            return step, None
        return step, torch.tensor(sampled, dtype=torch.int64, device=self.device)

    def picked(self, hidden: torch.Tensor, sampled: torch.Tensor | None) -> torch.Tensor:
        """Greedy: the id of the largest logit in each of the rows `sampled` (None: in all), and of
        padding behind them."""
        rows = hidden if sampled is None else hidden[padded(sampled)]
        return self._decoder.logits(rows).argmax(-1)


def num_sampled(batch: BatchWork) -> int:
    """How many tokens an iteration picks."""
    return sum(chunk.samples for chunk in batch.chunks) + len(batch.decodes)
