"""Layers that batches may use on a worker, and batches that wait for one."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from harness.engine.given_up import Abandoned, GivenUp


class Arrivals:
    """`layers`: those on the device now. `over`: flights that have been given up."""

    def __init__(self, layers: Mapping[int, object], over: GivenUp) -> None:
        self._layers, self._over = layers, over
        self._changed = threading.Condition()

    def changed(self) -> None:
        """A layer has come, or a flight been given up."""
        with self._changed:
            self._changed.notify_all()

    def run(self, first: int, stop: int, flight: int) -> range:
        """The consecutive layers of [first, stop) that are here from `first` on, once that one is.
        Abandoned: the flight has been given up."""
        with self._changed:
            self._changed.wait_for(lambda: first in self._layers or flight in self._over)
            if first not in self._layers:
                raise Abandoned
            last = first
            while last < stop and last in self._layers:
                last += 1
            return range(first, last)
