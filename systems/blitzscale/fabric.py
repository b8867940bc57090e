"""The network between GPUs as the planner sees it (§5.1, Fig. 10 (a)): plain data.

NVLink joins GPUs of one scale-up domain. Each GPU has a NIC on a leaf switch. GPUs of one leaf are
joined in a full mesh. The spine is not modelled: between leaves a NIC has a share of its rate, so
that a plan never promises too much (`harness.device.topology` shares a leaf's uplink among flows).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from harness.cost.hardware import Hardware


@dataclass(kw_only=True, slots=True, frozen=True)
class Device:
    """The place of one GPU in the network."""

    index: int  # its number in the cluster
    node: int  # the host
    domain: int  # NVLink joins its GPUs
    leaf: int


@dataclass(kw_only=True, frozen=True)
class Fabric:
    """The GPUs of a cluster, and the rates at which data reaches one, in bytes/s of one
    direction."""

    devices: tuple[Device, ...]
    nvlink_bytes_per_s: float  # rate from a GPU of its domain; 0: it is alone in it
    peer_bytes_per_s: float  # rate from a GPU of its node in another domain, over PCIe
    nic_bytes_per_s: float
    pcie_bytes_per_s: float  # rate from its host's memory, while other GPUs of its switch load too
    ssd_bytes_per_s: float  # rate of its share of its host's SSDs
    inter_leaf_share: float = 1.0  # share of a NIC's rate guaranteed between two leaves; 1: all

    def lane_bytes_per_s(self, sender: int, receiver: int) -> float:
        """Rate of one flow between two GPUs, if no other flow uses them; 0: no link joins them."""
        a, b = self.devices[sender], self.devices[receiver]
        if a.domain == b.domain:
            return self.nvlink_bytes_per_s
        if a.node == b.node:
            return self.peer_bytes_per_s
        return self.nic_lane_bytes_per_s(sender, receiver)

    def nic_lane_bytes_per_s(self, sender: int, receiver: int) -> float:
        """Rate of one flow from a GPU's NIC to another GPU's NIC."""
        same_leaf = self.devices[sender].leaf == self.devices[receiver].leaf
        return self.nic_bytes_per_s * (1.0 if same_leaf else self.inter_leaf_share)

    def of_node(self, node: int) -> list[Device]:
        """The GPUs of a node. Raises KeyError if the cluster has no such node."""
        return self._of_node[node]

    @cached_property
    def _of_node(self) -> dict[int, list[Device]]:
        found = groupby(self.devices, key=lambda device: device.node)
        return {node: list(devices) for node, devices in found}

    def domains(self, devices: Iterable[int]) -> set[int]:
        return {self.devices[device].domain for device in devices}


def fabric_of(hardware: Hardware) -> Fabric:
    """The network of `hardware`.

    If the profile does not say otherwise: a domain is a node with NVLink, else one GPU; a leaf is a
    node; two GPUs of a node in different domains exchange at the rate of host memory to a GPU.
    """
    per_node, nvlink = hardware.devices_per_node, hardware.nvlink_copy_bytes_per_s
    domain = (hardware.devices_per_domain or per_node) if nvlink > 0 else 1
    leaf = hardware.devices_per_leaf or per_node
    return Fabric(
        devices=tuple(
            Device(index=i, node=i // per_node, domain=i // domain, leaf=i // leaf)
            for i in range(hardware.num_devices)
        ),
        nvlink_bytes_per_s=nvlink if domain > 1 else 0.0,
        peer_bytes_per_s=hardware.peer_bytes_per_s or hardware.pcie_bytes_per_s,
        nic_bytes_per_s=hardware.nic_bytes_per_s,
        pcie_bytes_per_s=hardware.pcie_bytes_per_s / min(hardware.gpus_per_pcie_switch, per_node),
        ssd_bytes_per_s=hardware.ssd_bytes_per_s,
        inter_leaf_share=1 / hardware.leaf_oversubscription,
    )
