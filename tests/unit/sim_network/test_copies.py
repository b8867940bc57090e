"""What copies of elastic instances take: many chunks in closed form, and a device's bandwidth."""

from __future__ import annotations

import pytest

from harness.clock import VirtualLoop
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.device.location import dram, hbm
from harness.device.topology import cluster_topology
from harness.elastic.fabric import Memory, Sending
from harness.running import testbed
from harness.running.testbed import Bed
from harness.sim import fabric as sim_fabric
from harness.sim.beside_copies import rivals
from harness.sim.fabric import SimFabric
from harness.sim.network import Network
from tests.elastic import spec
from tests.running import composed, hardware_profile

PACED = hardware_profile("local_paced")
KV, HOST = Memory("a", hbm(0, 0)), Memory("dram0:kv", dram(0))


def copy_s(
    num_bytes: int, chunk_bytes: int | None, *, beside: int = 0, issue_s: float | None = None
) -> float:
    """How long a copy to DRAM takes, beside another one of `beside` bytes."""
    loop = VirtualLoop()
    fabric = SimFabric(loop, Network(loop, cluster_topology(PACED)), 1e12, 0.0)
    ends: list[float] = []

    async def one(size: int, chunks: int | None, purpose: str) -> None:
        sending = Sending(purpose, chunk_bytes=chunks, issue_s=issue_s)
        await fabric.copy(KV, HOST, size, list, sending)
        ends.append(loop.now)

    async def story() -> None:
        if beside:
            loop.spawn(one(beside, None, "other"), name="other")
        await one(num_bytes, chunk_bytes, "page out")

    loop.run(story())
    return ends[-1]


@pytest.mark.parametrize("rest", [0, 7])
def test_many_chunks_take_as_long_in_closed_form(
    rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1000 * 300 + rest
    monkeypatch.setattr(sim_fabric, "MANY_CHUNKS", 10**9)
    one_by_one = copy_s(size, 1000)
    monkeypatch.setattr(sim_fabric, "MANY_CHUNKS", 10)
    assert copy_s(size, 1000) == pytest.approx(one_by_one, rel=1e-9)
    assert copy_s(size, None) < one_by_one / 1.5  # it does pay for its chunks
    assert copy_s(size, 1000, beside=10**6) > one_by_one  # and shares the link


def test_copies_issued_one_behind_another_overlap_their_latencies() -> None:
    rate, latency_s = PACED.pcie_bytes_per_s, PACED.pcie_latency_s
    assert copy_s(300_000, 1000, issue_s=1e-9) == pytest.approx(latency_s + 300_000 / rate)
    slow_s = 2 * 1000 / rate
    assert copy_s(300_000, 1000, issue_s=slow_s) == pytest.approx(latency_s + 300 * slow_s)


def test_copies_leave_batches_what_they_do_not_take() -> None:
    assert rivals(0.02) == 0
    assert rivals(0.1) == pytest.approx(1 / 9, abs=1e-6)
    with pytest.raises(ValueError, match="below 1"):
        rivals(1.5)


@pytest.mark.parametrize("takes", [False, True])
def test_a_decode_is_slower_while_copies_read_its_memory(takes: bool) -> None:
    """Its step ends, and it goes on at the other rate: 10.7 % of an H100's bandwidth is taken."""
    node = composed("engine=sim").engine
    node.copies_take_bandwidth = takes
    engine, model = build(plain(node), "engine"), spec("llama3.1-8b")
    ends: dict[str, float] = {}
    for name, num_bytes in (("alone", 0), ("beside", 10**11)):
        with testbed.start(model, hardware_profile("h100x8"), engine, 2) as bed:

            async def story(bed: Bed = bed, name: str = name, num_bytes: int = num_bytes) -> None:
                lender, borrower = bed.instances
                request = bed.request(100, 101)
                await testbed.prefill(lender, [request])
                start_s = bed.loop.now
                if num_bytes:
                    copy = bed.cluster._fabric.copy(
                        lender.memory, borrower.memory, num_bytes, list, Sending("page in")
                    )
                    bed.loop.spawn(copy, name="copy")
                await testbed.finish(lender, [request])
                ends[name] = bed.loop.now - start_s

            bed.run(story())
    assert (ends["beside"] > ends["alone"] * 1.001) == takes
    if not takes:
        assert ends["beside"] == pytest.approx(ends["alone"], rel=1e-9)
    # 100 GB take 0.28 s of it; then it is as fast as alone.
    assert ends["beside"] < ends["alone"] + 0.28 * 0.2
