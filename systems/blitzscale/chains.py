"""A scale plan: serial forwarding chains from copies of the parameters to new instances (§5.1).

Plain data, and what follows from it: when each layer arrives where (Fig. 13), and which instances
forward nothing (Fig. 12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Medium(Enum):
    """What holds a copy of the parameters."""

    GPU = "gpu"
    HOST = "host"
    SSD = "ssd"


class Crossing(Enum):
    """The kind of link that a hop uses."""

    NVLINK = "nvlink"
    NETWORK = "network"  # NIC to NIC, or between two GPUs of a node without NVLink
    PCIE = "pcie"  # a host's memory to its own GPUs
    SSD = "ssd"  # a host's SSDs to its own GPUs


@dataclass(kw_only=True, slots=True, frozen=True)
class Source:
    """A copy from which parameters can be read. devices: of a GPU copy, one for each shard."""

    medium: Medium
    node: int
    devices: tuple[int, ...] = ()


@dataclass(kw_only=True, slots=True, frozen=True)
class Target:
    """A new instance to be loaded. devices: all of one node."""

    name: str
    devices: tuple[int, ...]
    live: bool = True  # may serve while it loads: a decode may not (§5.4)


@dataclass(slots=True, frozen=True)
class Lane:
    """One flow (Fig. 14): `share` of every layer, from GPU `sender`'s NIC to GPU `receiver`.

    For a host copy, `sender` is a GPU of that host, whose NIC is used.
    """

    sender: int
    receiver: int
    share: float


@dataclass(kw_only=True, slots=True, frozen=True)
class Hop:
    """Brings the parameters to one chain node: the targets of a scale-up domain.

    The targets exchange their lanes' parts among themselves (AllGather). No lanes: the hop crosses
    no network.
    """

    targets: tuple[Target, ...]
    link: Crossing
    lanes: tuple[Lane, ...]
    bytes_per_s: float  # of whole parameters: all lanes together


@dataclass(kw_only=True, slots=True, frozen=True)
class Chain:
    """Each hop's node forwards layers to the next node as they arrive. sources: of one domain."""

    sources: tuple[Source, ...]
    hops: tuple[Hop, ...]


@dataclass(kw_only=True, slots=True, frozen=True)
class Plan:
    """The chains of one scale-up."""

    chains: tuple[Chain, ...]

    def tails(self) -> list[Target]:
        """The instances that forward nothing. Their egress is free, so they can serve live without
        interference (Fig. 12)."""
        return [target for chain in self.chains for target in chain.hops[-1].targets]

    @property
    def senders(self) -> set[int]:
        """The GPUs whose NICs send."""
        lanes = [lane for chain in self.chains for hop in chain.hops for lane in hop.lanes]
        return {lane.sender for lane in lanes}


def arrivals_s(
    rates_bytes_per_s: Sequence[float], layers_bytes: Sequence[float]
) -> list[list[float]]:
    """[node][layer]: seconds from the start of the first send until the layer is at the node.

    A node sends a layer on once it has all of it, one layer at a time (Fig. 13 (a)).
    rates_bytes_per_s: of the hops, in order. layers_bytes: in the order of sending.
    """
    arrived = [0.0] * len(layers_bytes)  # at the source
    found = []
    for rate in rates_bytes_per_s:
        free_s, at_node = 0.0, []
        for there_s, num_bytes in zip(arrived, layers_bytes, strict=True):
            free_s = max(there_s, free_s) + num_bytes / rate
            at_node.append(free_s)
        found.append(at_node)
        arrived = at_node
    return found


def finish_s(chain: Chain, layers_bytes: Sequence[float]) -> list[float]:
    """Seconds until each node of `chain` has all layers."""
    rates = [hop.bytes_per_s for hop in chain.hops]
    return [at_node[-1] for at_node in arrivals_s(rates, layers_bytes)]


def expected_s(plan: Plan, layers_bytes: Sequence[float]) -> dict[str, list[float]]:
    """{target: seconds from the plan's start until it has each layer}."""
    found: dict[str, list[float]] = {}
    for chain in plan.chains:
        rates = [hop.bytes_per_s for hop in chain.hops]
        for hop, times_s in zip(chain.hops, arrivals_s(rates, layers_bytes), strict=True):
            found |= {target.name: times_s for target in hop.targets}
    return found
