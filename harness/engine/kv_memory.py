"""The KV of all models: one region on the device and one in host memory, both in slabs of blocks.

A block of a shape is [layers, 2, kv_heads, block_tokens, head_dim], in one piece, on either side
of the bus: Aegaeon §5.2's unified KV cache. Which block is where is the harness's to know.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from harness.engine.block_tables import FIRST_BLOCK, step_bytes
from harness.engine.cuda import finish, lock_pages
from harness.engine.kv_cache import KvCache
from harness.engine.loader import HostLink
from harness.engine.node_files import NodeFile
from harness.engine.weights import torch_dtype
from harness.model_spec import ModelSpec
from harness.pooled.plan import MemoryPlan


@dataclass(slots=True, frozen=True)
class Blocks:
    """Equally many blocks of `block_bytes` on both sides, in the same order; byte offsets."""

    block_bytes: int
    device_offsets: Sequence[int]
    host_offsets: Sequence[int]

    @property
    def num_bytes(self) -> int:
        return self.block_bytes * len(self.host_offsets)

    def runs(self) -> Iterator[tuple[slice, slice]]:
        """Places on the device and in host memory, each as long as it goes on in one piece on
        both sides: copies are cheap by the byte, not by the piece."""
        size, count = self.block_bytes, len(self.host_offsets)
        device, host = np.array(self.device_offsets), np.array(self.host_offsets)
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
        lock_pages(self._host, device)

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
        part = spec.num_kv_heads * head  # the keys, or the values, of one layer

        def blocks(index: int) -> torch.Tensor:
            """The `index`-th part of every block."""
            return flat[index * part :].as_strided(
                (num_ids, spec.num_kv_heads, block_tokens, spec.head_dim),
                (step // spec.dtype_bytes, head, spec.head_dim, 1),
            )

        keys = [blocks(2 * layer) for layer in range(spec.num_layers)]
        return KvCache(keys, [blocks(2 * layer + 1) for layer in range(spec.num_layers)])

    def copy_out(self, blocks: Blocks, link: HostLink) -> None:
        """Copies blocks from the device to the host; returns once the bytes are there."""
        with link.carry(blocks.num_bytes):
            for device, host in blocks.runs():
                self._host[host].copy_(self._region[device], non_blocking=True)
            finish(self._region.device)

    def copy_from(
        self, file: NodeFile, blocks: Blocks, chunk_bytes: int, carry: Callable[[int], None]
    ) -> None:
        """Copies blocks from the KV cache of another node to the device, as `copy_in` does.
        `carry`: returns once the links on the way could have carried so many bytes more."""
        for device, host in blocks.runs():
            for at in range(0, host.stop - host.start, chunk_bytes):
                size = min(chunk_bytes, host.stop - host.start - at)
                carry(size)
                content = bytearray(size)
                file.read(memoryview(content), host.start + at)
                part = torch.frombuffer(content, dtype=torch.uint8)
                self._region[device.start + at : device.start + at + size].copy_(part)
        finish(self._region.device)

    def copy_in(self, blocks: Blocks, link: HostLink) -> None:
        """Copies blocks from the host to the device; returns once the bytes are there."""
        with link.carry(blocks.num_bytes):
            for device, host in blocks.runs():
                self._region[device].copy_(self._host[host], non_blocking=True)
            finish(self._region.device)
