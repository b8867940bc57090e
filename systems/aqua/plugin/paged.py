"""A worker's copies of paged KV, to a producer's region or to host memory.

A row is one block's KV of all layers. Gathered, as in section 6, a request's blocks become rows on
the device and cross in one copy. By block, each layer's K and V of each block is a copy of its own,
as in vLLM's swap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from systems.aqua.plugin import region
from systems.aqua.plugin.pages import Page, Pages
from systems.aqua.plugin.staging import Staging

logger = logging.getLogger("vllm.aqua")
HOST, LEASE = "DRAM", "lease"


class PagedKv:
    """The paged KV of one worker.

    caches: of each layer, [blocks, ...]. `counts`: pages, copies, blocks, bytes and seconds by
    purpose, since the counts were last taken; e.g. "bytes/page out to DRAM".
    """

    def __init__(self, caches: Sequence[Tensor], *, by_block: bool) -> None:
        self._caches, self._by_block = caches, by_block
        self._sizes = [cache[0].numel() * cache.element_size() for cache in caches]
        self._staging = Staging(caches[0].device)
        self._host: dict[str, Tensor] = {}  # {request: [blocks, bytes of a block]}
        self.counts: dict[str, float] = {}

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, all layers."""
        return sum(self._sizes)

    def before(self, pages: Pages) -> None:
        """Migrates, drops and pages out, before the forward pass writes into the freed blocks."""
        for page in pages.migrated:
            self._migrate(page)
        for page in pages.returned:
            self._return(page)
        for request_id in pages.dropped:
            self._host.pop(request_id, None)
        for page in pages.out:
            self._page_out(page)

    def _page_out(self, page: Page) -> None:
        began_s = perf_counter()
        rows = self._off_device(page.block_ids)
        place = HOST
        if page.slots is not None:
            try:
                region.write(page.slots.lease, page.slots.blocks, _views(rows))
                place = LEASE
            except OSError as error:
                logger.warning("to host memory instead: %s", error)
        if place == HOST:
            self._host[page.request_id] = rows
        self._count(f"page out to {place}", rows, began_s)

    def page_in(self, page: Page) -> bool:
        """Pages in. False if the KV is lost; the blocks' content is then undefined."""
        began_s = perf_counter()
        rows = self._host.pop(page.request_id, None)
        place = HOST
        if rows is not None:
            rows = rows[page.first :]
        elif page.slots is not None:
            place = LEASE
            rows = self._from_lease(page)
        if rows is None:
            return False
        self._onto_device(page.block_ids, rows)
        self._count(f"page in from {place}", rows, began_s)
        return True

    def _migrate(self, page: Page) -> None:
        began_s = perf_counter()
        if (rows := self._from_lease(page)) is not None:
            self._host[page.request_id] = rows
            self._count(f"migrate from {LEASE} to {HOST}", rows, began_s)

    def _return(self, page: Page) -> None:
        """Where the lease is gone meanwhile, the KV stays in host memory, where it is looked for
        first."""
        assert page.slots is not None
        rows, began_s = self._host[page.request_id], perf_counter()
        try:
            region.write(page.slots.lease, page.slots.blocks, _views(rows))
        except OSError as error:
            logger.warning("stays in host memory: %s", error)
            return
        del self._host[page.request_id]
        self._count(f"migrate from {HOST} to {LEASE}", rows, began_s)

    def _from_lease(self, page: Page) -> Tensor | None:
        assert page.slots is not None
        blocks = page.slots.blocks[page.first :]
        rows = self._staging.rows(len(blocks), self.block_bytes)
        try:
            region.read(page.slots.lease, blocks, _views(rows))
        except OSError as error:
            logger.warning("KV of %s is lost: %s", page.request_id, error)
            return None
        return rows

    def _off_device(self, block_ids: list[int]) -> Tensor:
        """Copies blocks to host memory; returns [blocks, block_bytes]."""
        rows = self._staging.rows(len(block_ids), self.block_bytes)
        with self._staging.copying() as beside:
            if self._by_block:
                for of_device, of_host in self._halves(block_ids, rows):
                    of_host.copy_(of_device, non_blocking=beside)
            else:
                of_layer = [cache[block_ids].reshape(len(block_ids), -1) for cache in self._caches]
                gathered = torch.cat([each.view(torch.uint8) for each in of_layer], dim=1)
                rows.copy_(gathered, non_blocking=beside)
        return rows

    def _onto_device(self, block_ids: list[int], rows: Tensor) -> None:
        with self._staging.copying() as beside:
            if self._by_block:
                for of_device, of_host in self._halves(block_ids, rows):
                    of_device.copy_(of_host, non_blocking=beside)
                return
            staged = rows.to(self._caches[0].device, non_blocking=beside)
            for cache, own in zip(self._caches, torch.split(staged, self._sizes, 1), strict=True):
                shape = (len(block_ids), *cache.shape[1:])
                cache[block_ids] = own.contiguous().view(cache.dtype).reshape(shape)

    def _halves(self, block_ids: list[int], rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(part on the device, part in the row): two parts of each block in each layer, as K and V
        would be, whatever the layout is."""
        for row, block in zip(rows, block_ids, strict=True):
            for cache, own in zip(self._caches, row.split(self._sizes), strict=True):
                saved = own.view(cache.dtype).view(cache.shape[1:])
                yield from zip(cache[block].chunk(2), saved.chunk(2), strict=True)

    def _count(self, purpose: str, rows: Tensor, began_s: float) -> None:
        found = {
            "pages": 1, "copies": len(rows) * 2 * len(self._caches) if self._by_block else 1,
            "blocks": len(rows), "bytes": rows.numel(),
            "seconds": perf_counter() - began_s,
        }  # fmt: skip
        for what, number in found.items():
            key = f"{what}/{purpose}"
            self.counts[key] = self.counts.get(key, 0) + number


def _views(rows: Tensor) -> list[memoryview]:
    return [memoryview(row.numpy()) for row in rows]
