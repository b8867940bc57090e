"""The network between GPUs as the planner sees it (§5.1, Fig. 10 (a)): plain data.

NVLink joins GPUs of one scale-up domain. Each GPU has a NIC on a leaf switch. GPUs of one leaf are
joined in a full mesh. The spine is not modelled: between leaves a NIC has a share of its rate.
Rates are of one direction, in bytes/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.cost.hardware import Hardware


@dataclass(kw_only=True, slots=True, frozen=True)
class Device:
    """One GPU: where it is, and the rates at which data reaches it. NVLink joins two GPUs of the
    same `domain`."""

    index: int  # in the cluster
    node: int  # the host
    domain: int
    leaf: int
    nvlink_bytes_per_s: float  # to a GPU of its domain; 0: it is alone in it
    peer_bytes_per_s: float  # to a GPU of its node that is in another domain, over PCIe
    nic_bytes_per_s: float
    pcie_bytes_per_s: float  # from its host's memory, while other GPUs of its switch load too
    ssd_bytes_per_s: float  # its share of its host's SSDs


@dataclass(kw_only=True, slots=True, frozen=True)
class Fabric:
    """The GPUs of a cluster. inter_leaf_share: of a NIC's rate, guaranteed between two leaves; 1:
    all."""

    devices: tuple[Device, ...]
    inter_leaf_share: float = 1.0
    _of_node: dict[int, list[Device]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found: dict[int, list[Device]] = {}
        for device in self.devices:
            found.setdefault(device.node, []).append(device)
        object.__setattr__(self, "_of_node", found)

    def lane_bytes_per_s(self, sender: int, receiver: int) -> float:
        """Rate of one flow between two GPUs, if no other flow uses them; 0: no link joins them."""
        a, b = self.devices[sender], self.devices[receiver]
        if a.domain == b.domain:
            return min(a.nvlink_bytes_per_s, b.nvlink_bytes_per_s)
        if a.node == b.node:
            return min(a.peer_bytes_per_s, b.peer_bytes_per_s)
        return self.nic_lane_bytes_per_s(sender, receiver)

    def nic_lane_bytes_per_s(self, sender: int, receiver: int) -> float:
        """Rate of one flow from a GPU's NIC to another GPU's NIC."""
        a, b = self.devices[sender], self.devices[receiver]
        rate = min(a.nic_bytes_per_s, b.nic_bytes_per_s)
        return rate if a.leaf == b.leaf else rate * self.inter_leaf_share

    def of_node(self, node: int) -> list[Device]:
        """The GPUs of a node. Raises KeyError if the cluster has no such node."""
        return self._of_node[node]

    def domains(self, devices: Sequence[int]) -> set[int]:
        return {self.devices[device].domain for device in devices}


def fabric_of(hardware: Hardware) -> Fabric:
    """The network of `hardware`.

    If the profile does not say otherwise: a domain is a node with NVLink, else one GPU; a leaf is a
    node; two GPUs of a node in different domains exchange at the rate of host memory to a GPU.
    """
    per_node = hardware.devices_per_node
    joined = hardware.nvlink_copy_bytes_per_s > 0
    domain = (hardware.devices_per_domain or per_node) if joined else 1
    leaf = hardware.devices_per_leaf or per_node
    pcie_bytes_per_s = hardware.pcie_bytes_per_s / min(hardware.gpus_per_pcie_switch, per_node)
    devices = tuple(
        Device(
            index=i,
            node=i // per_node,
            domain=i // domain,
            leaf=i // leaf,
            nvlink_bytes_per_s=hardware.nvlink_copy_bytes_per_s if domain > 1 else 0.0,
            peer_bytes_per_s=hardware.peer_bytes_per_s or hardware.pcie_bytes_per_s,
            nic_bytes_per_s=hardware.nic_bytes_per_s,
            pcie_bytes_per_s=pcie_bytes_per_s,
            ssd_bytes_per_s=hardware.ssd_bytes_per_s,
        )
        for i in range(hardware.num_devices)
    )
    return Fabric(devices=devices, inter_leaf_share=1 / hardware.leaf_oversubscription)
