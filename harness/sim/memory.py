"""What a simulated device's HBM holds, to the byte: weights by layer, KV by layer, a reserve.

Layers are the grain because systems work by layers: KunServe drops the weights of some and turns
them into KV blocks of others, BlitzScale loads one after the other. Moving the bytes takes the
network's time (`network.py`); host DRAM and SSD are plain `harness.device.memory.Region`s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from harness.device.memory import KvShape, Region

Part = TypeVar("Part", bound=int | str)


@dataclass(frozen=True, slots=True)
class Weights:
    """A holder: one part of a model, a decoder layer by its index or e.g. "embedding"."""

    model: str
    part: int | str


@dataclass(frozen=True, slots=True)
class KvBlocks:
    """A holder: the KV blocks of one layer."""

    shape: KvShape
    layer: int


@dataclass(frozen=True, slots=True)
class Activations:
    """A holder: what is kept free for intermediate results."""


class DeviceMemory(Region):
    def __init__(self, name: str, capacity_bytes: int, activation_reserve_bytes: int) -> None:
        super().__init__(name, capacity_bytes)
        self.hold({Activations(): activation_reserve_bytes})

    def load(self, model: str, parts: Mapping[Part, int]) -> None:
        """Room for the weights of `parts`, part -> bytes; OutOfMemory, and no change: no room."""
        self.hold({Weights(model, part): num_bytes for part, num_bytes in parts.items()})

    def drop(self, model: str, parts: Iterable[Part]) -> None:
        self.hold({Weights(model, part): 0 for part in parts})

    def resize_kv(self, shape: KvShape, layers: Iterable[int], num_blocks: int) -> None:
        """Makes each of `layers` have `num_blocks`; OutOfMemory, and no change: no room."""
        self.hold({KvBlocks(shape, layer): num_blocks * shape.layer_bytes for layer in layers})

    def kv_blocks(self, shape: KvShape, layer: int) -> int:
        return self.held.get(KvBlocks(shape, layer), 0) // shape.layer_bytes

    def more_kv_blocks(self, shape: KvShape, num_layers: int) -> int:
        """How many more blocks, each in `num_layers` layers, the free memory holds."""
        return self.free_bytes // (num_layers * shape.layer_bytes)

    @property
    def weight_bytes(self) -> int:
        return sum(n for holder, n in self.held.items() if isinstance(holder, Weights))

    @property
    def kv_bytes(self) -> int:
        return sum(n for holder, n in self.held.items() if isinstance(holder, KvBlocks))
