"""Which links a transfer crosses, told by their names, and how long it takes alone."""

from dataclasses import replace

import pytest

from harness.device.location import Location, dram, hbm, ssd
from harness.device.topology import Topology
from harness.errors import UsageError
from tests.running import hardware_profile
from tests.unit.sim_network.transfers import PAIRS, cluster

# Two nodes of four GPUs; NVLink joins pairs, PCIe switches too; a leaf switch per node.
CROSSED = {
    (hbm(0, 0), hbm(0, 1)): ["nvlink out node0/gpu0", "nvlink in node0/gpu1"],
    (hbm(0, 1), hbm(0, 2)): [
        "pcie up node0/gpu1",
        "pcie switch up 0/0",
        "pcie switch down 0/1",
        "pcie down node0/gpu2",
    ],
    (dram(1), hbm(1, 3)): ["pcie switch down 1/1", "pcie down node1/gpu3"],
    (hbm(1, 3), dram(1)): ["pcie up node1/gpu3", "pcie switch up 1/1"],
    (ssd(0), dram(0)): ["ssd read 0"],
    (dram(0), ssd(0)): ["ssd write 0"],
    (ssd(0), hbm(0, 0)): ["ssd read 0", "pcie switch down 0/0", "pcie down node0/gpu0"],
    (hbm(0, 1), hbm(1, 2)): [
        "pcie up node0/gpu1",
        "nic out node0/gpu1",
        "leaf up 0",
        "leaf down 1",
        "nic in node1/gpu2",
        "pcie down node1/gpu2",
    ],
    (dram(0), hbm(1, 2)): [
        "pcie switch down 0/1",
        "nic out node0/gpu2",
        "leaf up 0",
        "leaf down 1",
        "nic in node1/gpu2",
        "pcie down node1/gpu2",
    ],
    (hbm(1, 2), dram(0)): [
        "pcie up node1/gpu2",
        "nic out node1/gpu2",
        "leaf up 1",
        "leaf down 0",
        "nic in node0/gpu2",
        "pcie switch up 0/1",
    ],
}


@pytest.mark.parametrize("pair", CROSSED, ids=str)
def test_links_between_two_places(pair: tuple[Location, Location]) -> None:
    assert [link.name for link in cluster().path(*pair).links] == CROSSED[pair]


def test_gpus_of_one_pcie_switch_meet_below_it() -> None:
    path = cluster(devices_per_domain=1).path(hbm(0, 0), hbm(0, 1))
    assert [link.name for link in path.links] == ["pcie up node0/gpu0", "pcie down node0/gpu1"]


def test_nodes_below_one_leaf_do_not_meet_the_spine() -> None:
    path = cluster(devices_per_leaf=8).path(hbm(0, 0), hbm(1, 0))
    assert not [link for link in path.links if link.name.startswith("leaf")]


def test_an_nvlink_domain_may_span_nodes() -> None:
    path = cluster(devices_per_domain=8).path(hbm(0, 3), hbm(1, 0))
    assert [link.name for link in path.links] == ["nvlink out node0/gpu3", "nvlink in node1/gpu0"]


def test_a_leafs_uplink_is_its_nics_over_the_oversubscription() -> None:
    path = cluster().path(hbm(0, 0), hbm(1, 0))
    assert {link.bytes_per_s for link in path.links if "leaf" in link.name} == {4 * 50.0 / 2}


def test_the_two_directions_share_no_link() -> None:
    topology = cluster()
    for src, dst in PAIRS:
        there, back = topology.path(src, dst), topology.path(dst, src)
        assert not set(there.links) & set(back.links), (src, dst)
        assert len(there.links) == len(back.links)
        assert there.latency_s == back.latency_s


def test_ssd_adds_its_latency_to_that_of_the_way_on() -> None:
    topology = cluster(ssd_latency_s=2.0, pcie_latency_s=1.0, nic_latency_s=4.0)
    assert topology.path(ssd(0), dram(0)).time_s(100) == 2.0 + 100 / 10
    assert topology.path(ssd(0), hbm(0, 0)).time_s(100) == 3.0 + 100 / 10
    assert topology.path(dram(0), hbm(0, 0)).time_s(100) == 1.0 + 100 / 100
    assert topology.path(dram(0), dram(1)).time_s(100) == 4.0 + 100 / 50


def test_a100_nvlink_copies_take_what_aqua_measured() -> None:
    """AQUA §7: a 4 MB buffer is copied at 50 GB/s, a 64 MB buffer at 200 GB/s.

    s / (α + s/β) = r  means  α + s/β = s/r: 80 µs for 4 MB, 320 µs for 64 MB. Subtracting,
    60 MB/β = 240 µs, so β = 250 GB/s; then α = 80 µs - 16 µs = 64 µs.
    """
    path = Topology(hardware_profile("a100x2")).path(hbm(0, 0), hbm(0, 1))
    assert 4e6 / path.time_s(4e6) == pytest.approx(50e9, rel=1e-12)
    assert 64e6 / path.time_s(64e6) == pytest.approx(200e9, rel=1e-12)


def test_h100_nvlink_copies_take_what_nccl_measured() -> None:
    """Vidur's profiles of send/recv: 237 GB/s for 5 MB, 346 GB/s for 64 MB."""
    path = Topology(hardware_profile("h100x8")).path(hbm(0, 0), hbm(0, 1))
    assert 5e6 / path.time_s(5e6) == pytest.approx(237e9, rel=0.05)
    assert 64e6 / path.time_s(64e6) == pytest.approx(346e9, rel=0.05)


def test_a_profile_without_nvlink_copies_between_devices_over_pcie() -> None:
    path = Topology(hardware_profile("a10x4")).path(hbm(0, 0), hbm(0, 1))
    assert all(link.name.startswith("pcie") for link in path.links)


@pytest.mark.parametrize("place", [hbm(0, 4), hbm(2, 0), hbm(0, -1), dram(2), ssd(-1)], ids=str)
def test_a_place_outside_the_cluster_is_an_error(place: Location) -> None:
    with pytest.raises(ValueError, match=f"{place} is not in a cluster of 2 nodes of 4 devices"):
        cluster().path(hbm(0, 0), place)


def test_a_device_reads_no_faster_than_its_own_ssd() -> None:
    """BlitzScale Table 1: 10 Gbps a GPU, so that Llama-3-8B's 16 GB take 12.8 s."""
    topology = Topology(hardware_profile("a800x32"))
    assert topology.path(ssd(0), hbm(0, 3)).time_s(16e9) == pytest.approx(12.8, rel=1e-3)
    assert topology.path(ssd(0), dram(0)).time_s(16e9) == pytest.approx(1.6, rel=1e-3)
    ours = {link.name for link in topology.path(ssd(0), hbm(0, 3)).links}
    others = {link.name for link in topology.path(ssd(0), hbm(0, 4)).links}
    assert ours & others == {"ssd read 0"}


def test_gpus_of_cluster_b_exchange_at_256_gbps_and_load_at_128() -> None:
    """BlitzScale Table 1."""
    topology = Topology(hardware_profile("a100pcie_x16"))
    assert topology.path(hbm(0, 0), hbm(0, 5)).time_s(32e9) == pytest.approx(1.0, rel=1e-3)
    assert topology.path(dram(0), hbm(0, 5)).time_s(16e9) == pytest.approx(1.0, rel=1e-3)


def test_leaves_and_domains_have_the_sizes_of_the_profile() -> None:
    on = replace(hardware_profile("a800x32"), devices_per_leaf=16, devices_per_domain=4)
    topology = Topology(on)
    assert not any("leaf" in link.name for link in topology.path(hbm(0, 0), hbm(1, 0)).links)
    assert any("leaf" in link.name for link in topology.path(hbm(0, 0), hbm(2, 0)).links)
    assert topology.path(hbm(0, 0), hbm(0, 3)).links[0].name.startswith("nvlink")
    assert topology.path(hbm(0, 0), hbm(0, 4)).links[0].name.startswith("pcie")


def test_a_transfer_to_the_same_place_is_an_error() -> None:
    with pytest.raises(ValueError, match="itself"):
        cluster().path(dram(1), dram(1))


def test_hardware_without_the_link_is_told_at_the_transfer_that_needs_it() -> None:
    topology: Topology = cluster(ssd_bytes_per_s=0.0)
    topology.path(dram(0), hbm(0, 0))
    with pytest.raises(UsageError, match="ssd read 0"):
        topology.path(ssd(0), hbm(0, 0))
