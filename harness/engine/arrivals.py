"""Layers that batches may use on a worker, KV on its way there, and batches that wait for one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from harness.engine.given_up import Abandoned, GivenUp


class Arrivals:
    """`layers`: those on the device now. `over`: flights that have been given up."""

    def __init__(self, layers: Mapping[int, object], over: GivenUp) -> None:
        self._layers, self._over = layers, over
        self._expected = set[int]()  # numbers of copies of KV that have not come
        self._changed = threading.Condition()

    def changed(self) -> None:
        """A layer has come, or a flight been given up."""
        with self._changed:
            self._changed.notify_all()

    def expect(self, copies: Iterable[int]) -> None:
        with self._changed:
            self._expected.update(copies)

    def settle(self, copies: Iterable[int]) -> None:
        """These have come, or never do: then no flight waits for one."""
        with self._changed:
            self._expected.difference_update(copies)
            self._changed.notify_all()

    def run(self, first: int, stop: int, flight: int, awaits: Mapping[int, Sequence[int]]) -> range:
        """The consecutive layers of [first, stop) that are here from `first` on, once that one is.
        `awaits`: by layer, the copies that it needs. Abandoned: the flight has been given up."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_here(first, awaits) or flight in self._over)
            if not self._is_here(first, awaits):
                raise Abandoned
            last = first
            while last < stop and self._is_here(last, awaits):
                last += 1
            return range(first, last)

    def _is_here(self, layer: int, awaits: Mapping[int, Sequence[int]]) -> bool:
        return layer in self._layers and self._expected.isdisjoint(awaits.get(layer, ()))
