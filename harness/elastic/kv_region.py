"""Which part of a memory is KV's. A device's: dropped layers add to it, leases and loads take away.
Outside of the instances that compute with it, in a node's DRAM or in memory that another device
lends (AQUA §4): all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Fabric, Memory
from harness.elastic.page_pool import PagePool
from harness.elastic.page_tables import PageTables
from harness.errors import RunError, UsageError


class KvRegion:
    """Which of an instance's bytes are KV pages. `places_matter`: whether `tables` says which page
    is whose."""

    def __init__(self, name: str, layout: DeviceLayout, places_matter: bool) -> None:
        self._name, self._layout = name, layout
        self.pool = PagePool(layout.num_pages(), layout.block_tokens, layout.num_groups)
        self.tables = PageTables(self.pool, layout.pages(()), 0) if places_matter else None
        self._given = set[int]()  # dropped layers, whose bytes are KV
        self._lent: list[range] = []  # page ids that others have

    def give(self, layers: Collection[int]) -> None:
        """The bytes of `layers` are pages from now on."""
        self._given.update(layers)
        self._extend()

    def given(self, layers: Collection[int]) -> set[int]:
        """Which of `layers` have bytes that are pages now."""
        return self._given.intersection(layers)

    def take_back(self, layers: Collection[int]) -> None:
        """The bytes of `layers` are no pages any more, once blocks there have been moved."""
        self._shrink(self._given.difference(layers), self._lent, f"layers {[*layers]}")

    def lend(self, pages: int) -> range:
        """Lends the last `pages` before the weights, in one piece: returns their bytes, which are
        free once blocks there have been moved."""
        size = self._layout.page_bytes
        stop = min([ids.start for ids in self._lent] or [self._layout.layer_at[0].start // size])
        ids = range(stop - pages, stop)
        if ids.start < 1:
            raise self._refusal("a lease", pages)
        self._shrink(self._given, [*self._lent, ids], "a lease")
        return range(ids.start * size, ids.stop * size)

    def take_home(self, lent: range) -> None:
        """Bytes that were lent are the KV's again."""
        size = self._layout.page_bytes
        self._lent.remove(range(lent.start // size, lent.stop // size))
        self._extend()

    def _shrink(self, given: set[int], lent: list[range], why: str) -> None:
        rest = without(self._layout.pages(given), lent)
        num_pages = sum(map(len, rest))
        if not self.pool.resize_pages(num_pages):
            raise self._refusal(why, self.pool.num_pages - num_pages)
        self._given, self._lent = given, lent
        if self.tables is not None:
            self.tables.restrict(rest)

    def _extend(self) -> None:
        pages = without(self._layout.pages(self._given), self._lent)
        grown = self.pool.resize_pages(sum(map(len, pages)))
        assert grown, "only _shrink takes pages away"
        if self.tables is not None:
            self.tables.extend(pages)

    def _refusal(self, why: str, pages: int) -> RunError:
        return RunError(
            f"{self._name}: {why} needs {pages} pages that are KV's now, and "
            f"{self.pool.free_pages} are free"
        )


class KvStore:
    """The bytes `at` of `memory`, for KV of the model of `layout`: pages of its size, counted and
    placed as an instance's are."""

    def __init__(
        self, name: str, memory: Memory, at: range, layout: DeviceLayout, fabric: Fabric
    ) -> None:
        pages = len(at) // layout.page_bytes
        if pages < layout.num_groups:
            raise UsageError(
                f"{name}: {len(at)} bytes hold no KV block of model {layout.spec.name}, which "
                f"has {layout.num_groups * layout.page_bytes}"
            )
        self.name, self.memory, self.layout = name, memory, layout
        self.page_bytes = layout.page_bytes
        self.kv = PagePool(pages, layout.block_tokens, layout.num_groups)
        ids = [range(pages)]
        self.tables = PageTables(self.kv, ids, at.start) if fabric.places_matter else None


def without(pages: Sequence[range], gone: Sequence[range]) -> list[range]:
    """`pages` but for those in `gone`."""
    found = list(pages)
    for lost in gone:
        before = [range(ids.start, min(ids.stop, lost.start)) for ids in found]
        after = [range(max(ids.start, lost.stop), ids.stop) for ids in found]
        found = [ids for pair in zip(before, after, strict=True) for ids in pair if ids]
    return found
