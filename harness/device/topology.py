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

from dataclasses import dataclass
from typing import NamedTuple

from harness.cost.hardware import Hardware
from harness.device.location import Location, Medium, dram
from harness.errors import UsageError


class Link:
    """One direction of a cable, a bus or a switch port. Equal only to itself."""

    __slots__ = ("bytes_per_s", "name")

    def __init__(self, name: str, bytes_per_s: float) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {self.bytes_per_s:g})"


class Path(NamedTuple):
    """The links that a message crosses, and the time before its first byte moves."""

    links: tuple[Link, ...]
    latency_s: float

    def time_s(self, num_bytes: float) -> float:
        """α + size/β: the time of one message of `num_bytes` with the links to itself."""
        return self.latency_s + num_bytes / min(link.bytes_per_s for link in self.links)


class Topology:
    @dataclass(kw_only=True, slots=True)
    class Config:
        """Bandwidths are per direction, in bytes/s. A latency is that of one whole message.

        0 bytes/s: there is no such link, and a transfer that needs it is an error.
        """

        num_nodes: int
        devices_per_node: int
        nvlink_domain_devices: int  # consecutive devices joined by NVLink; 1: no NVLink
        nvlink_bytes_per_s: float  # of a device
        nvlink_latency_s: float
        gpus_per_pcie_switch: int
        pcie_bytes_per_s: float  # of a device, and of a switch to the host
        pcie_latency_s: float
        peer_bytes_per_s: float | None = None  # between a node's devices; None: as PCIe's
        nic_bytes_per_s: float  # of a device's NIC
        nic_latency_s: float
        devices_per_leaf: int  # consecutive devices whose NICs share a leaf switch
        leaf_oversubscription: float  # NIC bandwidth below a leaf / its bandwidth to the spine
        ssd_bytes_per_s: float  # of a node
        devices_per_ssd: int | None = None  # consecutive devices that share a part of it
        ssd_latency_s: float

    def __init__(self, config: Config) -> None:
        self._config = config
        self._links: dict[str, Link] = {}

    def path(self, src: Location, dst: Location) -> Path:
        """Raises ValueError for a place that is not in the cluster, or from a place to itself."""
        self._check(src)
        self._check(dst)
        if src == dst:
            raise ValueError(f"a transfer from {src} to itself crosses no link")
        config = self._config
        head: list[Link] = []
        tail: list[Link] = []
        latency_s = 0.0
        if src.medium is Medium.SSD:
            head.append(self._link(f"ssd read {src.node}", config.ssd_bytes_per_s))
            latency_s += config.ssd_latency_s
            if dst.medium is Medium.HBM and config.devices_per_ssd is not None:
                head.append(self._ssd_of(dst))
            src = dram(src.node)
        if dst.medium is Medium.SSD:
            tail.append(self._link(f"ssd write {dst.node}", config.ssd_bytes_per_s))
            latency_s += config.ssd_latency_s
            dst = dram(dst.node)
        if src == dst:
            return Path((*head, *tail), latency_s)
        between = self._between_memories(src, dst)
        return Path((*head, *between.links, *tail), latency_s + between.latency_s)

    def _between_memories(self, src: Location, dst: Location) -> Path:
        config = self._config
        if src.medium is dst.medium is Medium.HBM and self._domain(src) == self._domain(dst):
            out = self._link(f"nvlink out {src}", config.nvlink_bytes_per_s)
            into = self._link(f"nvlink in {dst}", config.nvlink_bytes_per_s)
            return Path((out, into), config.nvlink_latency_s)
        if src.node == dst.node:
            if src.medium is dst.medium is Medium.HBM and config.peer_bytes_per_s is not None:
                peer = config.peer_bytes_per_s
                ends = self._link(f"peer out {src}", peer), self._link(f"peer in {dst}", peer)
                return Path(ends, config.pcie_latency_s)
            return Path(tuple(self._pcie_links(src, dst)), config.pcie_latency_s)
        return Path(tuple(self._rdma_links(src, dst)), config.nic_latency_s)

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
        """DRAM uses the NIC with the other end's number: traffic stays on one rail."""
        rail = src.device if src.medium is Medium.HBM else dst.device
        sender = Location(Medium.HBM, src.node, rail)
        receiver = dst if dst.medium is Medium.HBM else Location(Medium.HBM, dst.node, rail)
        from_hbm, to_hbm = src.medium is Medium.HBM, dst.medium is Medium.HBM
        links = [self._pcie("up", src) if from_hbm else self._pcie_switch("down", sender)]
        links.append(self._link(f"nic out {sender}", self._config.nic_bytes_per_s))
        leaves = self._leaf(sender), self._leaf(receiver)
        if leaves[0] != leaves[1]:
            links += [self._leaf_link("up", leaves[0]), self._leaf_link("down", leaves[1])]
        links.append(self._link(f"nic in {receiver}", self._config.nic_bytes_per_s))
        links.append(self._pcie("down", dst) if to_hbm else self._pcie_switch("up", receiver))
        return links

    def _pcie(self, direction: str, device: Location) -> Link:
        return self._link(f"pcie {direction} {device}", self._config.pcie_bytes_per_s)

    def _pcie_switch(self, direction: str, device: Location) -> Link:
        name = f"pcie switch {direction} {device.node}/{self._switch(device)}"
        return self._link(name, self._config.pcie_bytes_per_s)

    def _leaf_link(self, direction: str, leaf: int) -> Link:
        config = self._config
        below = config.devices_per_leaf * config.nic_bytes_per_s
        return self._link(f"leaf {direction} {leaf}", below / config.leaf_oversubscription)

    def _ssd_of(self, device: Location) -> Link:
        config = self._config
        assert config.devices_per_ssd is not None
        group = device.device // config.devices_per_ssd
        share = config.devices_per_ssd / config.devices_per_node
        return self._link(f"ssd read {device.node}/{group}", share * config.ssd_bytes_per_s)

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
        return device.node * self._config.devices_per_node + device.device

    def _domain(self, device: Location) -> int:
        return self._index(device) // self._config.nvlink_domain_devices

    def _leaf(self, device: Location) -> int:
        return self._index(device) // self._config.devices_per_leaf

    def _switch(self, device: Location) -> int:
        return device.device // self._config.gpus_per_pcie_switch

    def _check(self, place: Location) -> None:
        config = self._config
        devices = config.devices_per_node if place.medium is Medium.HBM else 1
        if not (0 <= place.node < config.num_nodes and 0 <= place.device < devices):
            raise ValueError(
                f"{place} is not in a cluster of {config.num_nodes} nodes "
                f"of {config.devices_per_node} devices"
            )


def cluster_topology(hardware: Hardware) -> Topology:
    """The links of `hardware`. Where its profile does not say otherwise each node hangs on a leaf
    of its own, and NVLink joins all devices of a node."""
    copy_bytes_per_s = hardware.nvlink_copy_bytes_per_s
    per_node = hardware.devices_per_node
    domain = hardware.devices_per_domain or per_node
    return Topology(
        Topology.Config(
            num_nodes=hardware.num_nodes,
            devices_per_node=hardware.devices_per_node,
            nvlink_domain_devices=domain if copy_bytes_per_s else 1,
            nvlink_bytes_per_s=copy_bytes_per_s,
            nvlink_latency_s=hardware.nvlink_copy_latency_s,
            gpus_per_pcie_switch=hardware.gpus_per_pcie_switch,
            pcie_bytes_per_s=hardware.pcie_bytes_per_s,
            pcie_latency_s=hardware.pcie_latency_s,
            peer_bytes_per_s=hardware.peer_bytes_per_s,
            nic_bytes_per_s=hardware.nic_bytes_per_s,
            nic_latency_s=hardware.nic_latency_s,
            devices_per_leaf=hardware.devices_per_leaf or per_node,
            leaf_oversubscription=hardware.leaf_oversubscription,
            ssd_bytes_per_s=hardware.ssd_bytes_per_s * hardware.devices_per_node,
            ssd_latency_s=hardware.ssd_latency_s,
            devices_per_ssd=hardware.devices_per_ssd,
        )
    )
