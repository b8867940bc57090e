"""Places that hold weights and KV: a GPU's HBM, a node's DRAM, a node's SSD.

A location is a name. The network knows how far apart two are.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import NamedTuple


class Medium(Enum):
    HBM = "gpu"
    DRAM = "dram"
    SSD = "ssd"

    __hash__ = object.__hash__  # Enum's own is a call in Python, at every look-up of a path


class Location(NamedTuple):
    """`device` counts within the node, and is 0 for DRAM and SSD, which a node has one of."""

    medium: Medium
    node: int
    device: int

    def __str__(self) -> str:
        device = str(self.device) if self.medium is Medium.HBM else ""
        return f"node{self.node}/{self.medium.value}{device}"

    def file(self, what: str) -> str:
        """The name of the file that has `what` there: a model's weights, or KV (`kv`)."""
        return f"{self.medium.value}{self.node}:{what}"


# A tuple: several that act as one, the devices of a tensor-parallel group.
Place = Location | tuple[Location, ...]


def members(place: Place) -> tuple[Location, ...]:
    return (place,) if isinstance(place, Location) else place


@cache
def hbm(node: int, device: int) -> Location:
    return Location(Medium.HBM, node, device)


@cache
def dram(node: int) -> Location:
    return Location(Medium.DRAM, node, 0)


@cache
def ssd(node: int) -> Location:
    return Location(Medium.SSD, node, 0)
