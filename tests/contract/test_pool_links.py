"""The links between the nodes of pooled instances, on every engine."""

from __future__ import annotations

import pytest

from tests.contract.pool_bench import KINDS, PoolBench

pytestmark = pytest.mark.usefixtures("forked_workers")

NIC = 1e6  # bytes/s: the KV of a request of 60 tokens takes a quarter of a second


@pytest.mark.parametrize("kind", KINDS)
def test_a_nodes_nic_is_shared_by_all_who_fetch_kv_from_it(kind: str) -> None:
    """Two nodes read from one's host cache: in all no faster than one."""
    bench = PoolBench(
        kind, ("wide", "narrow"), devices_per_node=1, num_devices=3, nic_bytes_per_s=NIC
    )
    source, *targets = bench.pool
    requests = [bench.request("narrow", 60) for _ in targets]

    async def story() -> float:
        for request in requests:
            await bench.prefill(source, request)
            await bench.loop.wait(source.swap_out(request, lambda: None))
        begin_s, pairs = bench.loop.now, list(zip(targets, requests, strict=True))
        arrivals = [target.swap_in(request, lambda: None) for target, request in pairs]
        for arrived in arrivals:
            assert arrived is not None
            await bench.loop.wait(arrived)
        end_s = bench.loop.now
        for target, request in pairs:
            target.evict(request)
        return end_s - begin_s

    try:
        took_s = bench.run(story)
    finally:
        bench.close()
    moves = bench.events("swap_in")
    assert {event["instance"] for event in moves} == {target.name for target in targets}
    assert took_s >= sum(event["fields"]["bytes"] for event in moves) / NIC
