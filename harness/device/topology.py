"""Which links lie between two places of a cluster, and how wide each is.

    GPU ── NVLink ── GPU of the same domain                              (NVSwitch: full mesh)
    GPU ── PCIe ── PCIe switch ── host DRAM ── SSD                       (switch shared by its GPUs)
    GPU ── PCIe ── NIC ── leaf ── spine ── leaf ── NIC ── PCIe ── GPU    (GPU-direct RDMA)

Every link is duplex: two independent directed links. Each GPU has a NIC, on the same PCIe
switch. The spine itself is never short of bandwidth (equal-cost multi-path); a leaf's links to it
may be (oversubscription), as in BlitzScale §5.1. Host DRAM is wider than what hangs on it.
Knows nothing of flows or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.cost.hardware import Hardware
from harness.device.location import Location, Medium, dram
from harness.errors import UsageError


@dataclass(slots=True, eq=False)
class Link:
    """One direction of a cable, a bus or a switch port. Equal only to itself."""

    name: str
    bytes_per_s: float


class Path(NamedTuple):
    """The links that a message crosses, and the time before its first byte moves. `num_far`: how
    many of them, the last ones, are at the target's node, if that is another than the source's."""

    links: tuple[Link, ...]
    latency_s: float
    num_far: int = 0

    def time_s(self, num_bytes: float) -> float:
        """α + size/β: the time of one message of `num_bytes` with the links to itself."""
        return self.latency_s + num_bytes / min(link.bytes_per_s for link in self.links)


class Topology:
    """Bandwidths are per direction; a latency is that of one whole message. 0 bytes/s: there is no
    such link, and a transfer that needs it is an error. Where the profile does not say otherwise
    each node hangs on a leaf of its own, and NVLink joins all devices of a node."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware, per_node = hardware, hardware.devices_per_node
        self._domain_devices = hardware.devices_per_domain or per_node
        if not hardware.nvlink_copy_bytes_per_s:
            self._domain_devices = 1
        self._leaf_devices = hardware.devices_per_leaf or per_node
        self._ssd_bytes_per_s = hardware.ssd_bytes_per_s * per_node  # of a node
        self._links: dict[str, Link] = {}

    def path(self, src: Location, dst: Location) -> Path:
        """Raises ValueError for a place that is not in the cluster, or from a place to itself."""
        self._check(src)
        self._check(dst)
        if src == dst:
            raise ValueError(f"a transfer from {src} to itself crosses no link")
        hardware = self._hardware
        head: list[Link] = []
        tail: list[Link] = []
        latency_s = 0.0
        if src.medium is Medium.SSD:
            head.append(self._link(f"ssd read {src.node}", self._ssd_bytes_per_s))
            latency_s += hardware.ssd_latency_s
            if dst.medium is Medium.HBM and hardware.devices_per_ssd is not None:
                head.append(self._ssd_of(dst))
            src = dram(src.node)
        if dst.medium is Medium.SSD:
            tail.append(self._link(f"ssd write {dst.node}", self._ssd_bytes_per_s))
            latency_s += hardware.ssd_latency_s
            dst = dram(dst.node)
        if src == dst:
            return Path((*head, *tail), latency_s)
        between = self._between_memories(src, dst)
        num_far = between.num_far + len(tail) if between.num_far else 0
        return Path((*head, *between.links, *tail), latency_s + between.latency_s, num_far)

    def ports(self, device: Location, others: Sequence[Location]) -> list[Link]:
        """The links of `device` alone, in both directions, on its ways to and from `others`."""
        ways = [(device, each) for each in others] + [(each, device) for each in others]
        links = dict.fromkeys(link for way in ways for link in self.path(*way).links)
        return [link for link in links if link.name.endswith(f" {device}")]

    def _between_memories(self, src: Location, dst: Location) -> Path:
        hardware = self._hardware
        if src.medium is dst.medium is Medium.HBM and self._domain(src) == self._domain(dst):
            out = self._link(f"nvlink out {src}", hardware.nvlink_copy_bytes_per_s)
            into = self._link(f"nvlink in {dst}", hardware.nvlink_copy_bytes_per_s)
            return Path((out, into), hardware.nvlink_copy_latency_s, int(src.node != dst.node))
        if src.node == dst.node:
            if src.medium is dst.medium is Medium.HBM and hardware.peer_bytes_per_s is not None:
                peer = hardware.peer_bytes_per_s
                ends = self._link(f"peer out {src}", peer), self._link(f"peer in {dst}", peer)
                return Path(ends, hardware.pcie_latency_s)
            return Path(tuple(self._pcie_links(src, dst)), hardware.pcie_latency_s)
        links = self._rdma_links(src, dst)
        return Path(tuple(links), hardware.nic_latency_s, len(links) // 2)

    def _pcie_links(self, src: Location, dst: Location) -> list[Link]:
        links = []
        past_switch = src.medium is not dst.medium or self._switch(src) != self._switch(dst)
        if src.medium is Medium.HBM:
            links.append(self._pcie("up", src))
            if past_switch:
                links.append(self._pcie_switch("up", src))
        if dst.medium is Medium.HBM:
            if past_switch:
                links.append(self._pcie_switch("down", dst))
            links.append(self._pcie("down", dst))
        return links

    def _rdma_links(self, src: Location, dst: Location) -> list[Link]:
        """As many of each node. DRAM uses the NIC with the other end's number: traffic stays on one
        rail."""
        rail = src.device if src.medium is Medium.HBM else dst.device
        sender = Location(Medium.HBM, src.node, rail)
        receiver = dst if dst.medium is Medium.HBM else Location(Medium.HBM, dst.node, rail)
        from_hbm, to_hbm = src.medium is Medium.HBM, dst.medium is Medium.HBM
        links = [self._pcie("up", src) if from_hbm else self._pcie_switch("down", sender)]
        links.append(self._link(f"nic out {sender}", self._hardware.nic_bytes_per_s))
        leaves = self._leaf(sender), self._leaf(receiver)
        if leaves[0] != leaves[1]:
            links += [self._leaf_link("up", leaves[0]), self._leaf_link("down", leaves[1])]
        links.append(self._link(f"nic in {receiver}", self._hardware.nic_bytes_per_s))
        links.append(self._pcie("down", dst) if to_hbm else self._pcie_switch("up", receiver))
        return links

    def _pcie(self, direction: str, device: Location) -> Link:
        return self._link(f"pcie {direction} {device}", self._hardware.pcie_bytes_per_s)

    def _pcie_switch(self, direction: str, device: Location) -> Link:
        name = f"pcie switch {direction} {device.node}/{self._switch(device)}"
        return self._link(name, self._hardware.pcie_bytes_per_s)

    def _leaf_link(self, direction: str, leaf: int) -> Link:
        hardware = self._hardware
        below = self._leaf_devices * hardware.nic_bytes_per_s
        return self._link(f"leaf {direction} {leaf}", below / hardware.leaf_oversubscription)

    def _ssd_of(self, device: Location) -> Link:
        hardware = self._hardware
        assert hardware.devices_per_ssd is not None
        group = device.device // hardware.devices_per_ssd
        share = hardware.devices_per_ssd / hardware.devices_per_node
        return self._link(f"ssd read {device.node}/{group}", share * self._ssd_bytes_per_s)

    def _link(self, name: str, bytes_per_s: float) -> Link:
        link = self._links.get(name)
        if link is None:
            if not bytes_per_s > 0:
                raise UsageError(
                    f"a transfer needs the link {name!r}, but the hardware gives it "
                    f"{bytes_per_s:g} bytes/s; choose hardware that has it"
                )
            link = self._links[name] = Link(name, bytes_per_s)
        return link

    def _index(self, device: Location) -> int:
        return device.node * self._hardware.devices_per_node + device.device

    def _domain(self, device: Location) -> int:
        return self._index(device) // self._domain_devices

    def _leaf(self, device: Location) -> int:
        return self._index(device) // self._leaf_devices

    def _switch(self, device: Location) -> int:
        return device.device // self._hardware.gpus_per_pcie_switch

    def _check(self, place: Location) -> None:
        hardware = self._hardware
        devices = hardware.devices_per_node if place.medium is Medium.HBM else 1
        if not (0 <= place.node < hardware.num_nodes and 0 <= place.device < devices):
            raise ValueError(
                f"{place} is not in a cluster of {hardware.num_nodes} nodes "
                f"of {hardware.devices_per_node} devices"
            )
