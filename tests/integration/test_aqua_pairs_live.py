"""Two pairs of real workers: each consumer's KV lies in its own lender's memory and in no other."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from harness.device.location import dram
from harness.elastic.fabric import Memory, Sending, Span
from harness.elastic.kv_region import KvStore
from harness.running.testbed import Bed
from tests.aqua import Asked, lent_stores, moved, moved_bytes, serve, system
from tests.elastic import check, generated, host_file, private, undisturbed
from tests.running import hardware_profile

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

TWO = "system.pairs=[{consumer: tiny-llama},{consumer: tiny-llama}]"
CROWD = [Asked(0.01 * i, 90 + 7 * i, 30 + 5 * (i % 4)) for i in range(10)]
FOUR = replace(hardware_profile("local_paced"), num_devices=4, devices_per_node=4)


async def region(made: Bed, store: KvStore) -> bytes:
    """All bytes of a lease, copied out of the lender's memory past the system."""
    tables, size = store.tables, store.kv.num_pages * store.page_bytes
    assert tables is not None
    fabric: Any = made.cluster._fabric
    file = Memory("dram0:kv", dram(0))  # leases have room for all: nothing else is in it
    span = Span(tables.base_bytes, 0, size)
    assert await fabric.copy(store.memory, file, size, lambda: [span], Sending("read by a test"))
    return os.pread(host_file(made.cluster, "dram0:kv"), size, 0)


def test_each_consumers_kv_lies_in_its_own_lenders_memory() -> None:
    """The first pair alone is asked, and the regions are read meanwhile; then both in turn."""
    with private("torch", 4, kv_blocks=128, page_layers=None, on=FOUR, paced=True) as made:
        aqua = system(made, "aqua", TWO, "system.lender.every=null", "system.lender.free_share=0.9")
        first, _ = aqua.pairs
        seen: list[bytes] = []

        async def look() -> None:
            while not moved(made, "page out to lease") or not lent_stores(aqua, 1):
                await made.loop.sleep(0.01)
            assert {e["instance"] for e in moved(made, "page out to lease")} == {
                first.consumer.instance.name
            }
            seen.append(await region(made, lent_stores(aqua)[0]))
            seen.append(await region(made, lent_stores(aqua, 1)[0]))

        def served() -> bool:
            return len(seen) == 2 and all(request.finished for request in made.requests)

        alone = [each._replace(of="consumer") for each in CROWD]
        serve(made, aqua, alone, beside=look, once=served, later=2 * CROWD)
        assert any(seen[0])
        assert not any(seen[1])
        assert generated(made) == undisturbed(made)
        assert {record.status for record in made.recorder.records.values()} == {"completed"}
        own = {pair.consumer.instance.name: pair.lender.instance.name for pair in aqua.pairs}
        out = moved(made, "page out to lease")
        assert {event["instance"] for event in out} == set(own)
        for event in out:
            assert event["fields"]["to"].startswith(f"lent by {own[event['instance']]} ")
        assert moved_bytes(made, "page out to lease") == moved_bytes(made, "page in from lease")
        assert not moved(made, "page out to DRAM")
        check(made)
