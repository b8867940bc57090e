"""The places where a chain can grow: the planner's working memory (§5.1).

A plan must be ready within milliseconds, so not all places are compared for every target. Places
with the same leaf, bottleneck and number of free NICs differ only in when their first layer
arrives; of these only the earliest is looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from systems.blitzscale.chains import Hop, Medium, Source
from systems.blitzscale.fabric import Device

Heap = list[tuple[float, int, int, "Tail"]]  # first_s, order of adding, number of ports


@dataclass(slots=True, eq=False)
class Tail:
    """A source that chains can start from (`hops` is None), or the last node of a chain."""

    sources: tuple[Source, ...]
    medium: Medium
    at: Device  # one of its GPUs, or of its host's
    ports: list[int]  # GPUs whose NIC can still send
    hops: list[Hop] | None = None  # of its chain; None: a source
    first_s: float = 0.0  # when the first layer is here
    bottleneck_bytes_per_s: float = float("inf")  # of the hops before it
    alive: bool = True


class Tails:
    """All places, indexed by node, domain and leaf.

    oversubscribed: NICs are slower between leaves, so leaves matter.
    """

    def __init__(self, *, oversubscribed: bool) -> None:
        self._oversubscribed = oversubscribed
        self._in_node: dict[int, list[Tail]] = defaultdict(list)
        self._in_domain: dict[int, list[Tail]] = defaultdict(list)  # not a host's memory or SSD
        self._heaps: dict[int | None, dict[tuple[Medium, float, int], Heap]] = defaultdict(
            lambda: defaultdict(list)
        )  # by leaf; None: anywhere
        self._count = 0  # orders equal places by when they were added

    def add(self, tail: Tail) -> None:
        """Adds a place."""
        for index in self._indices(tail):
            index.append(tail)
        self._push(tail)

    def keep(self, tail: Tail, ports: list[int]) -> None:
        """Keeps a source from which a chain has started, with the NICs that are left."""
        if len(ports) != len(tail.ports):
            tail.ports = ports
            self._push(tail)

    def remove(self, tail: Tail) -> None:
        """Removes a place that has a successor now."""
        tail.alive = False
        for index in self._indices(tail):
            index.remove(tail)

    def beside(self, at: Device) -> list[Tail]:
        """Places that reach a GPU there without a NIC: by NVLink, or from its host."""
        hosts = [tail for tail in self._in_node[at.node] if tail.medium is not Medium.GPU]
        return self._in_domain[at.domain] + hosts

    def near(self, at: Device) -> Iterator[Tail]:
        """Every place that may be the best one for a GPU there; some twice."""
        yield from self.beside(at)
        yield from (tail for tail in self._in_node[at.node] if tail.ports)
        for leaf in (None, at.leaf) if self._oversubscribed else (None,):
            for heap in self._heaps[leaf].values():
                top = _top(heap)
                if top is not None:
                    yield top

    def _indices(self, tail: Tail) -> list[list[Tail]]:
        of_node = self._in_node[tail.at.node]
        return (
            [of_node, self._in_domain[tail.at.domain]] if tail.medium is Medium.GPU else [of_node]
        )

    def _push(self, tail: Tail) -> None:
        if not tail.ports:
            return
        self._count += 1
        key = (tail.medium, tail.bottleneck_bytes_per_s, len(tail.ports))
        entry = (tail.first_s, self._count, len(tail.ports), tail)
        for leaf in (None, tail.at.leaf) if self._oversubscribed else (None,):
            heappush(self._heaps[leaf][key], entry)


def _top(heap: Heap) -> Tail | None:
    """The first entry that is still valid; removes those before it. None if there is none."""
    while heap:
        _, _, num_ports, tail = heap[0]
        if tail.alive and len(tail.ports) == num_ports:
            return tail
        heappop(heap)
    return None
