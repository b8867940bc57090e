"""The places where a chain can grow: the planner's working memory (§5.1).

A plan must be ready within milliseconds, so not all places are compared for every target. Places
with the same leaf, bottleneck and number of free NICs differ only in when their first layer
arrives; of these only the earliest is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from systems.blitzscale.chains import Medium, Source

Key = tuple[Medium, float, int]


@dataclass(slots=True)
class Tail:
    """A source that chains can start from (`chain` is None), or the last node of a chain."""

    sources: tuple[Source, ...]
    medium: Medium
    domain: int | None  # None: a host's memory or SSD, which no NVLink reaches
    node: int
    leaf: int
    ports: list[int]  # GPUs whose NIC can still send
    chain: int | None = None  # its number; None: a source
    first_s: float = 0.0  # when the first layer is here
    bottleneck_bytes_per_s: float = float("inf")  # of the hops before it
    alive: bool = True


class Tails:
    """All places, indexed by node, domain and leaf."""

    def __init__(self, *, oversubscribed: bool) -> None:
        """oversubscribed: NICs are slower between leaves, so leaves matter."""
        self._oversubscribed = oversubscribed
        self._at: dict[tuple[str, int | None], list[Tail]] = {}  # by node, and by domain
        self._in_leaf: dict[int, dict[Key, list[tuple[float, int, int, Tail]]]] = {}
        self._anywhere: dict[Key, list[tuple[float, int, int, Tail]]] = {}
        self._count = 0  # orders equal places by when they were added

    def add(self, tail: Tail) -> None:
        """Adds a place."""
        self._at.setdefault(("node", tail.node), []).append(tail)
        self._at.setdefault(("domain", tail.domain), []).append(tail)
        self._push(tail)

    def keep(self, tail: Tail, ports: list[int]) -> None:
        """Keeps a source from which a chain has started, with the NICs that are left."""
        if len(ports) != len(tail.ports):
            tail.ports = ports
            self._push(tail)

    def remove(self, tail: Tail) -> None:
        """Removes a place that has a successor now."""
        tail.alive = False
        self._at["node", tail.node].remove(tail)
        self._at["domain", tail.domain].remove(tail)

    def all(self) -> list[Tail]:
        """Every place."""
        return [tail for (by, _), tails in self._at.items() if by == "node" for tail in tails]

    def beside(self, domain: int, node: int) -> list[Tail]:
        """Places that reach a GPU there without a NIC: by NVLink, or from its host."""
        hosts = [tail for tail in self._at.get(("node", node), ()) if tail.domain is None]
        return [*self._at.get(("domain", domain), ()), *hosts]

    def near(self, domain: int, node: int, leaf: int) -> list[Tail]:
        """Every place that may be the best one for a GPU there, each once."""
        found = self.beside(domain, node)
        found += [tail for tail in self._at.get(("node", node), ()) if tail.ports]
        heaps = [*self._anywhere.values()]
        if self._oversubscribed:
            heaps += self._in_leaf.get(leaf, {}).values()
        found += [tail for heap in heaps if (tail := _top(heap)) is not None]
        return list({id(tail): tail for tail in found}.values())

    def _push(self, tail: Tail) -> None:
        if not tail.ports:
            return
        self._count += 1
        key = (tail.medium, tail.bottleneck_bytes_per_s, len(tail.ports))
        entry = (tail.first_s, self._count, len(tail.ports), tail)
        heappush(self._anywhere.setdefault(key, []), entry)
        if self._oversubscribed:
            heappush(self._in_leaf.setdefault(tail.leaf, {}).setdefault(key, []), entry)


def _top(heap: list[tuple[float, int, int, Tail]]) -> Tail | None:
    """The first entry that is still valid; removes those before it. None if there is none."""
    while heap:
        _, _, num_ports, tail = heap[0]
        if tail.alive and len(tail.ports) == num_ports:
            return tail
        heappop(heap)
    return None
