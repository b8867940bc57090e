"""The links of a cluster as its workers know them: by number, as fast as the profile says."""

from __future__ import annotations

from collections.abc import Sequence

from harness.device.location import Location
from harness.device.topology import Topology
from harness.engine.paced_links import LinkPath


class LinkTable:
    """The links of a topology by number, as `PacedLinks` knows them. `paced`: as slow as their
    rates; else nothing is added to what copies take."""

    def __init__(self, topology: Topology, places: Sequence[Location], paced: bool) -> None:
        self._topology, self._paced = topology, paced
        self._numbers: dict[str, int] = {}
        for source in places:
            for target in places:
                if source != target:
                    for link in topology.path(source, target).links:
                        self._numbers.setdefault(link.name, len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def path(self, source: Location, target: Location) -> LinkPath:
        """UsageError: there is none."""
        if source == target:
            return LinkPath((), None, 0.0)
        path = self._topology.path(source, target)
        numbers = tuple(self._numbers[link.name] for link in path.links)
        if not self._paced:
            return LinkPath(numbers, None, 0.0)
        return LinkPath(numbers, min(link.bytes_per_s for link in path.links), path.latency_s)
