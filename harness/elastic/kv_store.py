"""KV outside of the instances that compute with it: in a node's DRAM, or in memory that another
device lends (AQUA §4). Pages of one model's size, counted and placed as an instance's are.
"""

from __future__ import annotations

from harness.elastic.device_layout import DeviceLayout
from harness.elastic.fabric import Fabric, Memory
from harness.elastic.page_pool import PagePool
from harness.elastic.page_tables import PageTables
from harness.errors import UsageError


class KvStore:
    """The bytes `at` of `memory`, for KV of the model of `layout`."""

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
