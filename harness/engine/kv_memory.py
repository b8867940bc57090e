"""The KV of all models: one region on the device and one in host memory, both in slabs of blocks.

A block of a shape is [layers, 2, kv_heads, block_tokens, head_dim], in one piece, on either side
of the bus: Aegaeon §5.2's unified KV cache. Which block is where is the harness's to know.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from harness.engine.block_tables import FIRST_BLOCK, step_bytes
from harness.engine.kv_cache import KvCache, cache_over
from harness.engine.loader import HostLink, finish_copies
from harness.engine.weights import torch_dtype
from harness.model_spec import ModelSpec
from harness.pooled.device import KvCopy
from harness.pooled.plan import MemoryPlan


def runs(copy: KvCopy) -> Iterator[tuple[slice, slice]]:
    """Places on the device and in host memory, each as long as it goes on in one piece on both
    sides: copies are cheap by the byte, not by the piece."""
    size, count = copy.block_bytes, len(copy.host_offsets)
    device, host = np.array(copy.device_offsets), np.array(copy.host_offsets)
    breaks = 1 + np.flatnonzero((np.diff(device) != size) | (np.diff(host) != size))
    starts = [0, *breaks.tolist()]
    for first, last in zip(starts, [*starts[1:], count], strict=True):
        at, to, length = int(device[first]), int(host[first]), (last - first) * size
        yield slice(at, at + length), slice(to, to + length)


class KvMemory:
    """Whole slabs on the device, and the host's KV cache, which all workers share: `host_bytes` of
    `host_file`. Every shape's block 0, which nobody writes to, begins in what lies before the
    region.

    One dtype in all: what is left of another shape's block is then a number as well, and
    attention may multiply a block's unfilled places before it masks them out.
    """

    def __init__(
        self, plan: MemoryPlan, specs: Iterable[ModelSpec], host_file: int, host_bytes: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._slab_bytes, self._block_tokens = plan.slab_bytes, plan.block_tokens
        num_bytes = plan.kv_bytes // plan.slab_bytes * plan.slab_bytes
        largest = max(spec.kv_bytes_per_token for spec in specs)
        self._pad_bytes = pad_bytes = largest * plan.block_tokens
        self._padded = torch.zeros(pad_bytes + num_bytes, dtype=torch.uint8, device=device)
        self._region = self._padded[pad_bytes:]
        self._host = torch.frombuffer(mmap.mmap(host_file, host_bytes), dtype=torch.uint8)
        if device.type == "cuda":
            error = int(torch.cuda.cudart().cudaHostRegister(self._host.data_ptr(), host_bytes, 0))
            if error:
                raise RuntimeError(f"cannot page-lock {host_bytes} bytes: CUDA error {error}")

    def cache(self, spec: ModelSpec) -> KvCache:
        """The region as blocks of the model's shape, with the ids of `SlabTables`. Views: blocks
        overlap in them as they may lie, of which only some are this shape's at a time."""
        block_tokens = self._block_tokens
        block_bytes = spec.kv_bytes_per_token * block_tokens
        step = step_bytes(self._slab_bytes, block_bytes)
        start = self._pad_bytes - FIRST_BLOCK * step
        num_ids = (len(self._padded) - start - block_bytes) // step + 1
        flat = self._padded[start:].view(torch_dtype(spec))
        head = block_tokens * spec.head_dim
        strides = step // spec.dtype_bytes, spec.num_kv_heads * head, head
        return cache_over(flat, spec, (num_ids, block_tokens, spec.num_layers), strides)

    def copy(self, copy: KvCopy, link: HostLink) -> None:
        """Copies blocks across the bus; returns once the bytes are there."""
        with link.carry(copy.num_bytes):
            for at, to in runs(copy):
                device, host = self._region[at], self._host[to]
                source, target = (device, host) if copy.to_host else (host, device)
                target.copy_(source, non_blocking=True)
            finish_copies(self._region)
