"""Layers of which a batch waits for each when its turn comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.clock import Event


class Arriving(NamedTuple):
    """`layers`: of one instance, in order, the event that the weights of each are there. `gone`:
    each set once something that the batch needs is lost."""

    layers: Sequence[Event]
    gone: Sequence[Event]
