"""Chains: three receivers in about the time of one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.clock import VirtualLoop
from harness.device.topology import Topology
from harness.location import Location, dram, hbm
from harness.sim.multicast import multicast
from harness.sim.network import Network
from tests.unit.sim_network.world import Send, cluster, run

Arrivals = dict[tuple[int, int], float]


def chain_of(topology: Topology, chain: list[Location], chunks: list[int]) -> Arrivals:
    """When each chunk (place in the chain, chunk) arrived, and as (-1, -1) when all was done."""
    loop = VirtualLoop()
    network = Network(loop, topology)
    arrived: Arrivals = {}

    async def main() -> None:
        await multicast(
            loop,
            network,
            chain,
            chunks,
            on_chunk=lambda i, k: arrived.update({(i, k): loop.now}),
        )
        arrived[-1, -1] = loop.now

    loop.run(main())
    return arrived


def test_three_receivers_in_about_the_time_of_one() -> None:
    topology = cluster(num_nodes=4, leaf_oversubscription=1.0)
    layers = [50] * 32  # 1 s each
    one = chain_of(topology, [dram(0), hbm(1, 0)], layers)[-1, -1]
    three = chain_of(topology, [dram(0), hbm(1, 0), hbm(2, 0), hbm(3, 0)], layers)[-1, -1]
    separate = run(topology, [Send(dram(0), hbm(n, 0), 32 * 50) for n in (1, 2, 3)])
    assert one == 32.0
    assert three == 32.0 + 2.0
    assert max(separate) == 96.0


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(2, 5), st.sampled_from([0.0, 0.25]))
def test_k_chunks_reach_n_places_in_the_time_of_k_plus_n_minus_one(
    chunks: int, places: int, latency_s: float
) -> None:
    topology = cluster(num_nodes=places + 1, leaf_oversubscription=1.0, nic_latency_s=latency_s)
    chain = [hbm(node, 0) for node in range(places + 1)]
    arrived = chain_of(topology, chain, [100] * chunks)
    hop_s = latency_s + 100 / 50
    assert arrived.pop((-1, -1)) == pytest.approx((chunks + places - 1) * hop_s)
    assert arrived == {
        (i, k): pytest.approx((k + i) * hop_s) for i in range(1, places + 1) for k in range(chunks)
    }


@settings(deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=8))
def test_chunks_arrive_in_order_and_never_before_they_did_one_place_earlier(
    chunks: list[int],
) -> None:
    chain = [dram(0), hbm(0, 0), hbm(1, 0), hbm(1, 1)]  # PCIe, then NICs, then NVLink
    arrived = chain_of(cluster(), chain, chunks)
    for i in range(1, len(chain)):
        for k in range(len(chunks)):
            assert k == 0 or arrived[i, k - 1] < arrived[i, k]
            assert i == 1 or arrived[i - 1, k] < arrived[i, k]


def test_a_slow_link_last_does_not_delay_those_before_it() -> None:
    slow_last = chain_of(cluster(), [hbm(0, 0), hbm(0, 1), hbm(1, 0)], [100] * 4)
    slow_first = chain_of(cluster(), [hbm(0, 0), hbm(1, 0), hbm(1, 1)], [100] * 4)
    assert slow_last[1, 3] == 4 * 100 / 200  # NVLink first
    assert slow_first[1, 3] == 4 * 100 / 50
