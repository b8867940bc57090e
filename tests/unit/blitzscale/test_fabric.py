"""The fabric of hardware profiles (§5.1, Table 1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from systems.blitzscale.fabric import fabric_of
from tests.running import hardware_profile

GBPS = 1e9 / 8
A, B = hardware_profile("a800x32"), hardware_profile("a100pcie_x16")


def test_cluster_a_has_four_domains_of_eight_and_cluster_b_none() -> None:
    a, b = fabric_of(A), fabric_of(B)
    assert [device.domain for device in a.devices] == [i // 8 for i in range(32)]
    assert [device.domain for device in b.devices] == list(range(16))
    assert {device.leaf for device in b.devices} == {0, 1}


def test_rates_are_those_of_table_1() -> None:
    net = fabric_of(A)
    assert net.nic_bytes_per_s == 100 * GBPS
    assert net.pcie_bytes_per_s == 128 * GBPS
    assert net.ssd_bytes_per_s == 10 * GBPS


def test_a_lane_is_as_fast_as_the_link_that_joins_its_ends() -> None:
    spine = replace(A, leaf_oversubscription=4.0, devices_per_leaf=16)
    a, b = fabric_of(spine), fabric_of(B)
    assert a.lane_bytes_per_s(0, 7) == A.nvlink_copy_bytes_per_s
    assert a.lane_bytes_per_s(0, 8) == A.nic_bytes_per_s  # of one leaf
    assert a.lane_bytes_per_s(0, 16) == A.nic_bytes_per_s / 4
    assert b.lane_bytes_per_s(0, 7) == 256 * GBPS  # Table 1
    assert b.lane_bytes_per_s(0, 8) == B.nic_bytes_per_s


def test_gpus_of_one_pcie_switch_share_its_rate_to_the_host() -> None:
    net = fabric_of(replace(A, gpus_per_pcie_switch=2))
    assert net.pcie_bytes_per_s == 64 * GBPS


def test_a_domain_may_be_smaller_than_a_node() -> None:
    """The code's logical hosts of four GPUs."""
    a = fabric_of(replace(A, devices_per_domain=4))
    assert a.lane_bytes_per_s(0, 3) == A.nvlink_copy_bytes_per_s
    assert a.lane_bytes_per_s(3, 4) == A.pcie_bytes_per_s


@pytest.mark.parametrize("name", ["devices_per_domain", "devices_per_leaf"])
def test_a_size_below_one_is_told(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        replace(A, **{name: 0})
