"""A worker's copies of paged KV, to a producer's region or to host memory.

A row is one block's KV of all layers. Gathered, as in section 6, a request's blocks become rows on
the device and cross in one copy, or in one for each run of neighbours in a region. By block, each
layer's K and V of each block is a copy of its own, as in vLLM's swap.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from time import perf_counter

import torch
from torch import Tensor

from systems.aqua.plugin.pages import Page, Pages
from systems.aqua.plugin.region import Regions
from systems.aqua.plugin.staging import Staging

logger = logging.getLogger("vllm.aqua")
HOST, LEASE = "DRAM", "lease"


class PagedKv:
    """The paged KV of one worker.

    caches: of each layer, [blocks, ...]. rank: whose slots of a page are this worker's. `counts`:
    pages, copies, blocks, bytes and seconds by purpose, since the counts were last taken; e.g.
    "bytes/page out to DRAM".
    """

    def __init__(self, caches: Sequence[Tensor], *, by_block: bool, rank: int = 0) -> None:
        self._caches, self._by_block, self._rank = caches, by_block, rank
        self._sizes = [cache[0].numel() * cache.element_size() for cache in caches]
        self._staging = Staging(caches[0].device)
        self._regions = Regions()
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

    def close_all_but(self, leases: Collection[str]) -> None:
        """Closes regions in which no KV lies any more."""
        self._regions.keep(leases)

    def _page_out(self, page: Page) -> None:
        began_s = perf_counter()
        place, runs = LEASE, self._lent(page)
        if runs is None:
            rows = self._staging.rows(len(page.block_ids), self.block_bytes)
            self._host[page.request_id] = rows
            place, runs = HOST, [rows]
        self._off_device(page.block_ids, runs)
        self._count(f"page out to {place}", runs, began_s)

    def page_in(self, page: Page) -> bool:
        """Pages in. False if the KV is lost; the blocks' content is then undefined."""
        began_s = perf_counter()
        rows = self._host.pop(page.request_id, None)
        place, runs = HOST, None
        if rows is not None:
            runs = [rows[page.first :]]
        else:
            place, runs = LEASE, self._lent(page)
        if runs is None:
            return False
        self._onto_device(page.block_ids, runs)
        self._count(f"page in from {place}", runs, began_s)
        return True

    def _migrate(self, page: Page) -> None:
        began_s = perf_counter()
        if (runs := self._lent(page)) is not None:
            rows = self._staging.rows(sum(map(len, runs)), self.block_bytes)
            for of_host, run in _pairs(rows, runs):
                of_host.copy_(run)
            self._host[page.request_id] = rows
            self._count(f"migrate from {LEASE} to {HOST}", runs, began_s)

    def _return(self, page: Page) -> None:
        """Where the lease is gone meanwhile, the KV stays in host memory, where it is looked for
        first."""
        began_s = perf_counter()
        if (runs := self._lent(page)) is not None:
            rows = self._host.pop(page.request_id)
            for of_host, run in _pairs(rows, runs):
                run.copy_(of_host)
            self._count(f"migrate from {HOST} to {LEASE}", runs, began_s)

    def _lent(self, page: Page) -> list[Tensor] | None:
        """The page's rows in the region of this rank's lease. None: it has none, or it is gone."""
        if page.slots is None:
            return None
        slots = page.slots[self._rank]
        try:
            return self._regions.rows(slots.lease, slots.blocks[page.first :], self.block_bytes)
        except OSError as error:
            logger.warning("no KV of %s in a lease: %s", page.request_id, error)
            return None

    def _off_device(self, block_ids: list[int], runs: list[Tensor]) -> None:
        """Copies blocks to rows elsewhere."""
        with self._staging.copying() as beside:
            if self._by_block:
                for of_device, own in self._halves(block_ids, runs):
                    own.copy_(of_device, non_blocking=beside)
                return
            of_layer = [cache[block_ids].reshape(len(block_ids), -1) for cache in self._caches]
            gathered = torch.cat([each.view(torch.uint8) for each in of_layer], dim=1)
            for part, run in _pairs(gathered, runs):
                run.copy_(part, non_blocking=beside)

    def _onto_device(self, block_ids: list[int], runs: list[Tensor]) -> None:
        with self._staging.copying() as beside:
            if self._by_block:
                for of_device, own in self._halves(block_ids, runs):
                    of_device.copy_(own, non_blocking=beside)
                return
            here = [run.to(self._caches[0].device, non_blocking=beside) for run in runs]
            staged = here[0] if len(here) == 1 else torch.cat(here)
            for cache, own in zip(self._caches, torch.split(staged, self._sizes, 1), strict=True):
                shape = (len(block_ids), *cache.shape[1:])
                cache[block_ids] = own.contiguous().view(cache.dtype).reshape(shape)

    def _halves(self, block_ids: list[int], runs: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """(part on the device, part in the row): two parts of each block in each layer, as K and V
        would be, whatever the layout is."""
        for row, block in zip(chain.from_iterable(runs), block_ids, strict=True):
            for cache, own in zip(self._caches, row.split(self._sizes), strict=True):
                saved = own.view(cache.dtype).view(cache.shape[1:])
                yield from zip(cache[block].chunk(2), saved.chunk(2), strict=True)

    def _count(self, purpose: str, runs: list[Tensor], began_s: float) -> None:
        blocks = sum(map(len, runs))
        found = {
            "pages": 1,
            "copies": blocks * 2 * len(self._caches) if self._by_block else len(runs),
            "blocks": blocks, "bytes": blocks * self.block_bytes,
            "seconds": perf_counter() - began_s,
        }  # fmt: skip
        for what, number in found.items():
            key = f"{what}/{purpose}"
            self.counts[key] = self.counts.get(key, 0) + number


def _pairs(rows: Tensor, runs: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """(rows of one tensor, the run that they belong to)."""
    return zip(torch.split(rows, [len(run) for run in runs]), runs, strict=True)
