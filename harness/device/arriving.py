"""Layers of which a batch waits for each when its turn comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.clock import Event
from harness.device.kv_arrivals import KvArrival


class Arriving(NamedTuple):
    """`layers`: of one instance, in order, the events of each: that its weights are there, and the
    batch's KV of it. `gone`: each set once something that the batch needs is lost. `kv`: which KV
    is on its way."""

    layers: Sequence[Sequence[Event]]
    gone: Sequence[Event]
    kv: Sequence[KvArrival] = ()

    def check_kv(self) -> None:
        """InstanceLost where KV has been lost on its way."""
        for arrival in self.kv:
            if arrival.lost is not None:
                raise arrival.lost
