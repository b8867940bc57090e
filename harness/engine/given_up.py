"""Batches that the harness has given up, on a worker; layers that are here, and who waits for one.

A batch that has lost a worker leaves steps behind on the others: one that computes, and attention
that was asked for and waits its turn. Their blocks belong to other requests, or to weights, as soon
as the harness has given the batch up. So whoever writes KV says so (`writing`), and once `add` has
returned no stream writes for that batch any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Literal

import torch

from harness.engine.cuda import finish_all


class Abandoned(Exception):
    """The batch is over: its harness, or a worker that it needs, has given it up."""


class GivenUp:
    """One lock for each stream that writes KV: the two do not wait for each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batches: set[int] = set()
        self._locks = {"compute": Lock(), "attend": Lock()}

    def __contains__(self, batch: int) -> bool:
        return batch in self._batches

    def add(self, batch: int, *, broken: bool) -> None:
        """`broken`: off in its midst. What a GPU was told to write before is waited for then."""
        with self._locks["compute"], self._locks["attend"]:
            self._batches.add(batch)
        if broken:
            finish_all(self._device)

    @contextmanager
    def writing(self, batch: int, stream: Literal["compute", "attend"]) -> Iterator[None]:
        """Raises Abandoned where the batch has been given up."""
        with self._locks[stream]:
            if batch in self._batches:
                raise Abandoned
            yield


class Arrivals:
    """`layers`: those on the device now, which batches may use. `over`: batches that have been
    given up."""

    def __init__(self, layers: Mapping[int, object], over: GivenUp) -> None:
        self._layers, self._over = layers, over
        self._changed = Condition()

    def changed(self) -> None:
        """A layer has come, or a batch been given up."""
        with self._changed:
            self._changed.notify_all()

    def run(self, first: int, stop: int, batch: int) -> range:
        """The consecutive layers of [first, stop) that are here from `first` on, once that one is.
        Abandoned: the batch has been given up."""
        with self._changed:
            self._changed.wait_for(lambda: first in self._layers or batch in self._over)
            if first not in self._layers:
                raise Abandoned
            last = first
            while last < stop and last in self._layers:
                last += 1
            return range(first, last)
