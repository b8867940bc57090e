"""FlashInfer's attention on a GPU, over the blocks where they lie (`engine.attention=flashinfer`).

Chunks and decodes of a batch attend in one call, by its FA2 kernels for prefills over pages, whose
layout HND is ours. The rest of a step is torch's. A plan says which pages each request reads; the
layers of a page group share one. None of this has run on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.cuda import finish
from harness.engine.kernels import BatchAttention
from harness.engine.kv_cache import KvCache, new_cache, table
from harness.engine.torch_kernels import TorchKernels
from harness.engine.work import BatchWork, Blocks, Chunk
from harness.model_spec import ModelSpec

WORKSPACE_BYTES = 128 * 2**20  # what its documentation takes


class _Planned(threading.local):
    """What each stream, which is a thread, has planned last, of any model: a plan's memory is used
    again."""

    wrapper: Any = None
    step: tuple[object, int, int] | None = None  # whose, which one, by which table


PLANNED = _Planned()


class FlashSteps:
    """Where a batch's new tokens stand, the same in all layers."""

    def __init__(
        self, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks], device: torch.device
    ) -> None:
        self.cache, self._device, self.number = cache, device, 0
        chunks, decodes = batch.chunks, batch.decodes
        lengths = [chunk.num_tokens for chunk in chunks] + [1] * len(decodes)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        contexts = np.array([chunk.context for chunk in chunks] + list(decodes), np.int64)
        self._known = contexts + lengths  # with the new ones
        self._requests = np.repeat(np.arange(len(lengths)), lengths)
        self._places = np.arange(self._starts[-1]) + np.repeat(
            contexts - self._starts[:-1], lengths
        )
        self._tables = [table(each) for each in tables]
        self._begin()

    def advance(self) -> None:
        self.number += 1
        self._known = self._known + 1
        self._places = self._places + 1
        self._begin()

    def _begin(self) -> None:
        """Says where the new tokens go, by table."""
        columns, offsets = np.divmod(self._places, self.cache.block_tokens)
        blocks = np.stack([each[self._requests, columns] for each in self._tables])
        on_device = (torch.from_numpy(each).to(self._device) for each in (blocks, offsets))
        self.rows = self.cache.rows(*on_device).unbind()

    def plan(self, number: int) -> tuple[torch.Tensor, ...]:
        """Of FlashInfer, by the table with this `number`, all on the host: where each request's
        queries begin, where its pages, the pages, and how full the last one is."""
        size, ids = self.cache.block_tokens, self._tables[number]
        num_pages = -(-self._known // size)
        pages = ids[np.arange(ids.shape[1]) < num_pages[:, None]]
        last = self._known - (num_pages - 1) * size
        parts = (self._starts, np.concatenate([[0], np.cumsum(num_pages)]), pages, last)
        return tuple(torch.from_numpy(part.astype(np.int32)) for part in parts)


class FlashAttention:
    """Answers `BatchAttention`, in the layers whose blocks are those of one of the `steps`'
    tables."""

    def __init__(self, kernels: FlashKernels, steps: FlashSteps, number: int) -> None:
        self._kernels, self._steps, self._number = kernels, steps, number

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        steps, cache = self._steps, self._steps.cache
        cache.write(layer, steps.rows[self._number], k, v)
        wrapper = self._kernels.planned(steps, self._number)
        out: torch.Tensor = wrapper.run(q, (cache.keys[layer], cache.values[layer]))
        return out

    def advance(self) -> None:
        self._steps.advance()


class FlashKernels(TorchKernels):
    """`library`: flashinfer, of this `version`."""

    def __init__(self, spec: ModelSpec, device: torch.device, library: Any, version: str) -> None:
        super().__init__(spec, device)
        self.name = f"flashinfer {version}"
        self._spec, self._library = spec, library
        self._load()

    def attentions(
        self, cache: KvCache, batch: BatchWork, tables: Sequence[Blocks]
    ) -> Sequence[BatchAttention]:
        steps = FlashSteps(cache, batch, tables, self._device)
        return [FlashAttention(self, steps, number) for number in range(len(tables))]

    def planned(self, steps: FlashSteps, number: int) -> Any:
        """FlashInfer's wrapper of this thread, with the plan of the step that `steps` stands at."""
        mine, spec = PLANNED, self._spec
        if mine.wrapper is None:
            workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
            make = self._library.BatchPrefillWithPagedKVCacheWrapper
            mine.wrapper = make(workspace, "HND", backend="fa2")
        step = (steps, steps.number, number)
        if mine.step != step:
            finish(self._device)  # its copy of the last plan to the GPU may not have begun
            mine.wrapper.plan(
                *steps.plan(number), spec.num_heads, spec.num_kv_heads, spec.head_dim,
                steps.cache.block_tokens, causal=True,
                q_data_type=steps.cache.keys[0].dtype, kv_data_type=steps.cache.keys[0].dtype,
            )  # fmt: skip
            mine.step = step
        return mine.wrapper

    def _load(self) -> None:
        """Attends to a single token: FlashInfer compiles a kernel at its first use, which may take
        a minute."""
        spec, block_tokens = self._spec, 16
        cache = new_cache(replace(spec, num_layers=1), 1, block_tokens, self._device)
        (attend,) = self.attentions(cache, BatchWork([Chunk(0, 1, True)], []), [[[FIRST_BLOCK]]])
        counts = (spec.num_heads, spec.num_kv_heads)
        q, k = (cache.keys[0].new_zeros((1, count, spec.head_dim)) for count in counts)
        attend(0, q, k, k)
