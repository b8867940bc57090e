"""Small clusters for the planner's tests, and every way to spread parameters in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from systems.blitzscale.chains import Lane, Medium, Plan, Source, Target, arrivals_s
from systems.blitzscale.fabric import Device, Fabric

NIC = 1.0  # bytes/s: times come out in units of one NIC's rate
LAYERS = [1.0] * 8


def fabric(nodes: Sequence[tuple[int, int]], share: float = 1.0, nvlink: float = 1e6) -> Fabric:
    """`nodes`: (GPUs, leaf) of each. NVLink joins a node's GPUs unless it is 0."""
    devices: list[Device] = []
    for node, (width, leaf) in enumerate(nodes):
        for _ in range(width):
            index = len(devices)
            domain = node if nvlink else index
            devices.append(Device(index=index, node=node, domain=domain, leaf=leaf))
    return Fabric(
        devices=tuple(devices), nvlink_bytes_per_s=nvlink, peer_bytes_per_s=2 * NIC,
        nic_bytes_per_s=NIC, pcie_bytes_per_s=1.28 * NIC, ssd_bytes_per_s=0.1 * NIC,
        inter_leaf_share=share,
    )  # fmt: skip


def source(fabric: Fabric, node: int) -> Source:
    """One that has a copy on all GPUs of the node."""
    devices = tuple(device.index for device in fabric.of_node(node))
    return Source(medium=Medium.GPU, node=node, devices=devices)


def target(fabric: Fabric, node: int) -> Target:
    devices = tuple(device.index for device in fabric.of_node(node))
    return Target(name=f"t{node}", devices=devices)


def lanes(plan: Plan) -> list[Lane]:
    return [lane for chain in plan.chains for hop in chain.hops for lane in hop.lanes]


@dataclass(slots=True, frozen=True)
class Spread:
    last_s: float
    mean_s: float


def every_spread(
    nodes: Sequence[tuple[int, int]], num_sources: int, share: float
) -> Iterator[Spread]:
    """When the last target has all layers, and on average, for every forest: each target loads
    from one source or target, and a sender divides its NICs among those that load from it."""
    targets = range(num_sources, len(nodes))
    for choice in product(range(len(nodes)), repeat=len(targets)):
        parents = dict(zip(targets, choice, strict=True))
        paths = {child: _path(child, parents, num_sources) for child in targets}
        if all(paths.values()):
            ends = []
            for child in targets:
                route = [*paths[child], child]
                rates = [_rate(a, b, nodes, parents, share) for a, b in pairwise(route)]
                ends.append(arrivals_s(rates, LAYERS)[-1][-1])
            yield Spread(max(ends), sum(ends) / len(ends))


def _path(child: int, parents: dict[int, int], num_sources: int) -> list[int]:
    """From a source down to `child`'s parent; [] if there is a circle."""
    route = [child]
    while route[-1] >= num_sources:
        route.append(parents[route[-1]])
        if route[-1] == child or len(route) > len(parents) + 1:
            return []
    return route[:0:-1]


def _rate(
    a: int, b: int, nodes: Sequence[tuple[int, int]], parents: dict[int, int], share: float
) -> float:
    """`b`'s part of `a`'s NICs, by max-min fairness among all that load from `a`."""
    left = float(nodes[a][0])
    children = sorted((c for c, p in parents.items() if p == a), key=lambda c: nodes[c][0])
    for k, child in enumerate(children):
        part = min(float(nodes[child][0]), left / (len(children) - k))
        if child == b:
            return part * NIC * (1.0 if nodes[a][1] == nodes[b][1] else share)
        left -= part
    raise AssertionError(f"{b} does not load from {a}")
