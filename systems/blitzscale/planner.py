"""Which GPU gets the parameters from where: the greedy multicast plan of §5.1 (Algorithm 11).

The algorithm's listing is missing in our text; it is reconstructed from the prose around it, which
names its lines:

    1      prune sources whose sending would compete with the KV that they send
    2      group targets by scale-up domain, sorted by falling speed of the link that reaches them
    3-10   serial chains: a chain inside a leaf if the leaf has a source (6-7), else one that
           crosses the spine; nodes of a chain by falling speed (5)

Here lines 3 to 10 are one rule. Each group in turn goes where it will be complete first: behind a
chain's last node, or as the first node of a new chain from a source with free NICs. So a slow
crossing is taken only if it pays. A free source is used before a chain grows, which leaves more
tails to serve live (Fig. 12 (b)). Pure; knows neither roles nor time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from systems.blitzscale.chains import Chain, Crossing, Hop, Lane, Medium, Plan, Source, Target
from systems.blitzscale.fabric import Fabric
from systems.blitzscale.tails import Tail, Tails


@dataclass(slots=True, frozen=True)
class Group:
    """The targets of one chain node: those of a scale-up domain, or one instance without NVLink."""

    targets: tuple[Target, ...]
    devices: tuple[int, ...]
    domain: int
    node: int
    leaf: int

    @property
    def live(self) -> bool:
        """Whether a target may serve live. Among equals such a group comes later in a chain, since
        only a tail serves live."""
        return any(target.live for target in self.targets)


def plan(
    fabric: Fabric,
    sources: Sequence[Source],
    targets: Sequence[Target],
    layers_bytes: Sequence[float],
    *,
    busy: Collection[int] = (),
) -> Plan:
    """Chains that bring all layers to every target once.

    layers_bytes: of each layer; embeddings count with the first, the head with the last. busy: GPUs
    whose network egress is in use, by KV of a prefill of any model or by an earlier plan; they send
    only if nothing else can. Raises UsageError if a target has no source or no link.
    """
    if not sources:
        raise UsageError("no GPU, host or SSD has a copy of the parameters to scale from")
    groups = grouped(fabric, targets)
    return _Planner(fabric, sources, targets, layers_bytes, busy).run(groups)


def grouped(fabric: Fabric, targets: Iterable[Target]) -> list[Group]:
    """Line 2 without sorting: the targets of each NVLink domain. An instance whose GPUs NVLink does
    not join is a group of its own."""
    found: dict[tuple[int, ...], list[Target]] = {}
    for target in targets:
        found.setdefault(tuple(sorted(fabric.domains(target.devices))), []).append(target)
    groups = []
    for members in found.values():
        devices = tuple(device for target in members for device in target.devices)
        first = fabric.devices[devices[0]]
        groups.append(Group(tuple(members), devices, first.domain, first.node, first.leaf))
    return groups


class _Planner:
    def __init__(
        self,
        fabric: Fabric,
        sources: Sequence[Source],
        targets: Sequence[Target],
        layers_bytes: Sequence[float],
        busy: Collection[int],
    ) -> None:
        self._fabric = fabric
        self._busy = frozenset(busy)
        self._layer_bytes = sum(layers_bytes) / len(layers_bytes)
        self._rest_bytes = sum(layers_bytes) - self._layer_bytes
        self._taken = {device for target in targets for device in target.devices}
        self._tails = Tails(oversubscribed=fabric.inter_leaf_share < 1)
        self._chains: list[list[Hop]] = []
        self._origins: list[tuple[Source, ...]] = []
        self._pruned: list[Tail] = []
        self._open(sources)

    def run(self, groups: list[Group]) -> Plan:
        leaves = {tail.leaf for tail in self._tails.all() if tail.ports}
        for group in sorted(groups, key=lambda g: (-self._reach_bytes_per_s(g, leaves), g.live)):
            best = self._best(group)
            if best is None and self._pruned:  # no other source: busy NICs must be shared
                for tail in self._pruned:
                    self._tails.add(tail)
                self._pruned = []
                best = self._best(group)
            if best is None:
                names = ", ".join(target.name for target in group.targets)
                raise UsageError(f"no link brings the parameters to {names}")
            self._extend(best, group)
        chains = zip(self._origins, self._chains, strict=True)
        return Plan(
            chains=tuple(Chain(sources=origin, hops=tuple(hops)) for origin, hops in chains)
        )

    def _open(self, sources: Sequence[Source]) -> None:
        """Line 1: makes one chain head of the sources of a domain, without busy NICs. Busy NICs are
        kept in `_pruned`, for targets that no other source reaches."""
        by_domain: dict[tuple[int, ...], list[Source]] = {}
        for source in sources:
            if source.medium is Medium.GPU:
                key = tuple(sorted(self._fabric.domains(source.devices)))
                by_domain.setdefault(key, []).append(source)
        for members in by_domain.values():
            ports = [device for source in members for device in source.devices]
            first = self._fabric.devices[ports[0]]
            self._open_at(members, Medium.GPU, first.domain, first.node, first.leaf, ports)
        used = self._taken | {device for source in sources for device in source.devices}
        for source in sources:
            if source.medium is not Medium.GPU:
                beside = self._fabric.of_node(source.node)
                at_host = source.medium is Medium.HOST
                ports = [each.index for each in beside if at_host and each.index not in used]
                leaf = beside[0].leaf
                self._open_at([source], source.medium, None, source.node, leaf, ports)

    def _open_at(
        self,
        members: Sequence[Source],
        medium: Medium,
        domain: int | None,
        node: int,
        leaf: int,
        ports: Sequence[int],
    ) -> None:
        origin = tuple(members)
        free = [port for port in ports if port not in self._busy]
        self._tails.add(Tail(origin, medium, domain, node, leaf, free))
        if len(free) < len(ports):
            taken = [port for port in ports if port in self._busy]
            self._pruned.append(Tail(origin, medium, domain, node, leaf, taken))

    def _reach_bytes_per_s(self, group: Group, leaves: set[int]) -> float:
        """Line 2's order: the rate at which the nearest source could send to `group`. leaves: those
        that have a source with a free NIC."""
        nics = sum(self._fabric.devices[device].nic_bytes_per_s for device in group.devices)
        share = 1.0 if group.leaf in leaves else self._fabric.inter_leaf_share
        local = self._tails.beside(group.domain, group.node)
        return max([nics * share, *(self._rate(tail, group) for tail in local)])

    def _best(self, group: Group) -> Tail | None:
        """The place behind which `group` is complete first; among equals, where the first layer
        arrives first. None if no place reaches it."""
        best, best_key = None, (float("inf"), float("inf"))
        for tail in self._tails.near(group.domain, group.node, group.leaf):
            hop_rate = self._rate(tail, group)
            if hop_rate > 0:
                first_s = tail.first_s + self._layer_bytes / hop_rate
                rate = min(tail.bottleneck_bytes_per_s, hop_rate)
                key = (first_s + self._rest_bytes / rate, first_s)
                if key < best_key:
                    best, best_key = tail, key
        return best

    def _link(self, tail: Tail, group: Group) -> Crossing:
        """The link between `tail` and `group`; the fastest if there are several."""
        if tail.medium is Medium.SSD:
            return Crossing.SSD
        if tail.medium is Medium.HOST and tail.node == group.node:
            return Crossing.PCIE
        if tail.medium is Medium.GPU and tail.domain == group.domain:
            return Crossing.NVLINK
        return Crossing.NETWORK

    def _rate(self, tail: Tail, group: Group) -> float:
        """Bytes/s of whole parameters from `tail` to `group`; 0: no link joins them."""
        link, devices = self._link(tail, group), self._fabric.devices
        if link is Crossing.NETWORK:
            return sum(self._lane_rates(tail, group))
        if link is Crossing.NVLINK:
            narrowest = min(len(target.devices) for target in group.targets)
            return devices[group.devices[0]].nvlink_bytes_per_s * narrowest
        own = [devices[device] for device in group.devices if devices[device].node == tail.node]
        if link is Crossing.PCIE:
            return sum(device.pcie_bytes_per_s for device in own)
        return sum(device.ssd_bytes_per_s for device in own)

    def _lane_rates(self, tail: Tail, group: Group) -> list[float]:
        """Bytes/s of each NIC. For a host copy, PCIe from memory to the NIC is a limit too."""
        if tail.medium is Medium.GPU:
            rate = self._fabric.lane_bytes_per_s
            return [rate(a, b) for a, b in zip(tail.ports, group.devices, strict=False)]
        return [
            min(self._fabric.nic_lane_bytes_per_s(a, b), self._fabric.devices[a].pcie_bytes_per_s)
            for a, b in zip(tail.ports, group.devices, strict=False)
        ]

    def _hop(self, tail: Tail, group: Group) -> Hop:
        link = self._link(tail, group)
        if link is not Crossing.NETWORK:
            rate = self._rate(tail, group)
            return Hop(targets=group.targets, link=link, lanes=(), bytes_per_s=rate)
        rates = self._lane_rates(tail, group)
        flows, rate = zip(tail.ports, group.devices, rates, strict=False), sum(rates)
        lanes = tuple(Lane(a, b, each / rate) for a, b, each in flows if each)
        return Hop(targets=group.targets, link=link, lanes=lanes, bytes_per_s=rate)

    def _extend(self, tail: Tail, group: Group) -> None:
        """Puts `group` behind `tail`, as the chain's next node or as the first node of a new chain.
        A new chain takes the NICs that it needs from the source."""
        hop = self._hop(tail, group)
        if tail.chain is None:
            number = len(self._chains)
            self._chains.append([])
            self._origins.append(tail.sources)
            used = {lane.sender for lane in hop.lanes}
            self._tails.keep(tail, [port for port in tail.ports if port not in used])
        else:
            number = tail.chain
            self._tails.remove(tail)
        self._chains[number].append(hop)
        self._tails.add(
            Tail(
                tail.sources,
                Medium.GPU,
                group.domain,
                group.node,
                group.leaf,
                list(group.devices),
                chain=number,
                first_s=tail.first_s + self._layer_bytes / hop.bytes_per_s,
                bottleneck_bytes_per_s=min(tail.bottleneck_bytes_per_s, hop.bytes_per_s),
            )
        )
