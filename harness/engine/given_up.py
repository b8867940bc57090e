"""Flights that the harness has given up, on a worker.

A flight that has lost a worker leaves steps behind on the others: one that computes, and attention
that was asked for and waits its turn. Their blocks belong to other requests, or to weights, as soon
as the harness has given the flight up. So whoever writes KV says so (`writing`), and once `add` has
returned no lane writes for that flight any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Literal

import torch


class Abandoned(Exception):
    """The flight is over: its harness, or a worker that it needs, has given it up."""


class GivenUp:
    """One lock for each lane that writes KV: the two do not wait for each other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flights: set[int] = set()
        self._locks = {"compute": Lock(), "attend": Lock()}

    def __contains__(self, flight: int) -> bool:
        return flight in self._flights

    def add(self, flight: int, *, broken: bool) -> None:
        """`broken`: off in its midst. What a GPU was told to write before is waited for then."""
        with self._locks["compute"], self._locks["attend"]:
            self._flights.add(flight)
        if broken and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @contextmanager
    def writing(self, flight: int, lane: Literal["compute", "attend"]) -> Iterator[None]:
        """Raises Abandoned where the flight has been given up."""
        with self._locks[lane]:
            if flight in self._flights:
                raise Abandoned
            yield
