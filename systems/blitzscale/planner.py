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

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from harness.errors import UsageError
from systems.blitzscale.chains import Chain, Crossing, Hop, Lane, Medium, Plan, Source, Target
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.tails import Tail, Tails

Copy = TypeVar("Copy", Source, Target)


@dataclass(slots=True, frozen=True)
class Group:
    """The targets of one chain node: those of a scale-up domain, or one instance without NVLink."""

    targets: tuple[Target, ...]
    devices: tuple[int, ...]
    at: Device  # the first of them


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
    planner = _Planner(fabric, layers_bytes)
    planner.open(sources, targets, busy)
    planner.chain(targets)
    return Plan(chains=tuple(Chain(sources=s, hops=tuple(hops)) for s, hops in planner.chains))


class _Planner:
    def __init__(self, fabric: Fabric, layers_bytes: Sequence[float]) -> None:
        self._fabric = fabric
        self._layer_bytes = sum(layers_bytes) / len(layers_bytes)
        self._rest_bytes = sum(layers_bytes) - self._layer_bytes
        self._tails = Tails(oversubscribed=fabric.inter_leaf_share < 1)
        self._leaves = set[int]()  # that have a source with a free NIC
        self._pruned: list[Tail] = []
        self.chains: list[tuple[tuple[Source, ...], list[Hop]]] = []

    def open(
        self, sources: Sequence[Source], targets: Iterable[Target], busy: Collection[int]
    ) -> None:
        """Line 1: makes one chain head of the sources of a domain, without busy NICs. Busy NICs are
        kept in `_pruned`, for targets that no other source reaches."""
        copies = [source for source in sources if source.medium is Medium.GPU]
        for members in _by_domain(self._fabric, copies):
            ports = [device for source in members for device in source.devices]
            self._open(members, self._fabric.devices[ports[0]], ports, busy)
        used = {device for target in targets for device in target.devices}
        used |= {device for source in sources for device in source.devices}
        for source in sources:
            if source.medium is not Medium.GPU:
                beside = self._fabric.of_node(source.node)
                idle = [device.index for device in beside if device.index not in used]
                ports = idle if source.medium is Medium.HOST else []
                self._open([source], beside[0], ports, busy)

    def _open(
        self, members: Sequence[Source], at: Device, ports: Sequence[int], busy: Collection[int]
    ) -> None:
        origin, medium = tuple(members), members[0].medium
        free = [port for port in ports if port not in busy]
        self._tails.add(Tail(origin, medium, at, free))
        if free:
            self._leaves.add(at.leaf)
        if len(free) < len(ports):
            taken = [port for port in ports if port in busy]
            self._pruned.append(Tail(origin, medium, at, taken))

    def chain(self, targets: Iterable[Target]) -> None:
        """Lines 2 to 10: puts each group of targets where it is complete first."""
        groups = []
        for members in _by_domain(self._fabric, targets):
            devices = tuple(device for target in members for device in target.devices)
            groups.append(Group(tuple(members), devices, self._fabric.devices[devices[0]]))
        for group in sorted(groups, key=self._order):
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

    def _order(self, group: Group) -> tuple[float, bool]:
        """Line 2: by falling rate at which the nearest source could send to `group`. Among equals a
        group that may serve live comes later in a chain, since only a tail serves live."""
        share = 1.0 if group.at.leaf in self._leaves else self._fabric.inter_leaf_share
        nics = len(group.devices) * self._fabric.nic_bytes_per_s
        beside = [sum(self._crossing(tail, group)[1]) for tail in self._tails.beside(group.at)]
        return -max([nics * share, *beside]), any(target.live for target in group.targets)

    def _best(self, group: Group) -> Tail | None:
        """The place behind which `group` is complete first; among equals, where the first layer
        arrives first. None if no place reaches it."""
        best, best_key = None, (inf, inf)
        for tail in self._tails.near(group.at):
            hop_rate = sum(self._crossing(tail, group)[1])
            if hop_rate > 0:
                first_s = tail.first_s + self._layer_bytes / hop_rate
                rate = min(tail.bottleneck_bytes_per_s, hop_rate)
                key = (first_s + self._rest_bytes / rate, first_s)
                if key < best_key:
                    best, best_key = tail, key
        return best

    def _crossing(self, tail: Tail, group: Group) -> tuple[Crossing, list[float]]:
        """The link between `tail` and `group`, the fastest if there are several, and the bytes/s of
        each of its flows; none: no link joins them."""
        fabric = self._fabric
        if tail.medium is Medium.GPU:
            if tail.at.domain == group.at.domain:
                narrowest = min(len(target.devices) for target in group.targets)
                return Crossing.NVLINK, [fabric.nvlink_bytes_per_s * narrowest]
            lanes = zip(tail.ports, group.devices, strict=False)
            return Crossing.NETWORK, [fabric.lane_bytes_per_s(a, b) for a, b in lanes]
        if tail.medium is Medium.HOST and tail.at.node != group.at.node:
            lanes = zip(tail.ports, group.devices, strict=False)  # PCIe to the NIC limits them, too
            pcie = fabric.pcie_bytes_per_s
            return Crossing.NETWORK, [
                min(fabric.nic_lane_bytes_per_s(a, b), pcie) for a, b in lanes
            ]
        own = [each for each in group.devices if fabric.devices[each].node == tail.at.node]
        if tail.medium is Medium.HOST:
            return Crossing.PCIE, [fabric.pcie_bytes_per_s] * len(own)
        return Crossing.SSD, [fabric.ssd_bytes_per_s] * len(own)

    def _extend(self, tail: Tail, group: Group) -> None:
        """Puts `group` behind `tail`, as the chain's next node or as the first node of a new chain.
        A new chain takes the NICs that it needs from the source."""
        link, rates = self._crossing(tail, group)
        rate, lanes = sum(rates), tuple[Lane, ...]()
        if link is Crossing.NETWORK:
            flows = zip(tail.ports, group.devices, rates, strict=False)
            lanes = tuple(Lane(a, b, each / rate) for a, b, each in flows if each)
        hops = tail.hops
        if hops is None:
            hops = []
            self.chains.append((tail.sources, hops))
            used = {lane.sender for lane in lanes}
            self._tails.keep(tail, [port for port in tail.ports if port not in used])
        else:
            self._tails.remove(tail)
        hops.append(Hop(targets=group.targets, link=link, lanes=lanes, bytes_per_s=rate))
        first_s = tail.first_s + self._layer_bytes / rate
        bottleneck = min(tail.bottleneck_bytes_per_s, rate)
        ports = list(group.devices)
        self._tails.add(Tail(tail.sources, Medium.GPU, group.at, ports, hops, first_s, bottleneck))


def _by_domain(fabric: Fabric, copies: Iterable[Copy]) -> list[list[Copy]]:
    """The instances of each scale-up domain together. An instance whose GPUs NVLink does not join
    is alone."""
    found: dict[tuple[int, ...], list[Copy]] = {}
    for copy in copies:
        found.setdefault(tuple(sorted(fabric.domains(copy.devices))), []).append(copy)
    return list(found.values())


def nearest_spares(
    fabric: Fabric, sources: Sequence[Source], spares: Sequence[tuple[int, ...]], count: int
) -> list[tuple[int, ...]]:
    """Which of the spare GPUs a scale-up takes: "a subset of GPUs in targets" (§5.1).

    Up to `count` of `spares`, the GPUs of one instance each; the best first. sources: copies of the
    parameters. The paper does not say which. Here those that parameters reach fastest: first GPUs
    that NVLink joins with a copy, or on a host with a copy; then GPUs on a leaf with a copy. Among
    equals, those of the scale-up domain that has the most of them: they load as one chain node,
    over all their NICs.
    """
    copies = [source for source in sources if source.medium is Medium.GPU]
    domains = {domain for copy in copies for domain in fabric.domains(copy.devices)}
    hosts = {source.node for source in sources if source.medium is Medium.HOST}
    leaves = {fabric.of_node(s.node)[0].leaf for s in sources if s.medium is not Medium.SSD}
    rooms = Counter(fabric.devices[spare[0]].domain for spare in spares)

    def rank(spare: tuple[int, ...]) -> tuple[bool, bool, int, int, tuple[int, ...]]:
        first = fabric.devices[spare[0]]
        beside = first.domain in domains or first.node in hosts
        return not beside, first.leaf not in leaves, -rooms[first.domain], first.domain, spare

    return sorted(spares, key=rank)[:count]


def spread_spares(
    fabric: Fabric, spares: Sequence[tuple[int, ...]], count: int
) -> list[tuple[int, ...]]:
    """Takes `count` of `spares`, each on the host that has the most left, wherever copies are."""
    left, taken = sorted(spares), list[tuple[int, ...]]()
    while left and len(taken) < count:
        nodes = [fabric.devices[spare[0]].node for spare in left]
        rooms = Counter(nodes)
        taken.append(left.pop(nodes.index(max(rooms, key=lambda node: (rooms[node], -node)))))
    return taken
