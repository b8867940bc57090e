"""Memory as exact bytes: who holds how much of a region, and a region used like a stack.

The same arithmetic on every engine: the simulator counts with it, an engine attaches tensors to
its offsets. A region is a GPU's HBM, a node's DRAM or SSD, or a part of one.
"""

from __future__ import annotations

from typing import NamedTuple

from mypy_extensions import mypyc_attr

from harness.errors import RunError


@mypyc_attr(native_class=False)
class OutOfMemory(RunError):
    """More was asked of a region than it has left: the caller did not check, or cannot wait."""


class Region:
    """`capacity_bytes`, of which holders have some each. It can never be overcommitted."""

    def __init__(self, name: str, capacity_bytes: int) -> None:
        self.name = name
        self.capacity_bytes = capacity_bytes
        self.free_bytes = capacity_bytes
        self.held: dict[str, int] = {}  # holder -> bytes > 0

    def hold(self, holder: str, num_bytes: int) -> None:
        """Makes `holder` have `num_bytes` in all; 0 gives everything back. OutOfMemory, and no
        change: there is not so much."""
        more = num_bytes - self.held.get(holder, 0)
        if more > self.free_bytes:
            raise OutOfMemory(
                f"{self.name} has {self.free_bytes} of {self.capacity_bytes} bytes free, and "
                f"{more} more are asked for"
            )
        self.free_bytes -= more
        self.held[holder] = num_bytes
        if not num_bytes:
            del self.held[holder]


class KvShape(NamedTuple):
    """The KV block of one model on one device: blocks of different shapes share no pool."""

    num_layers: int
    num_kv_heads: int  # on this device
    head_dim: int
    dtype_bytes: int
    block_tokens: int

    @property
    def layer_bytes(self) -> int:
        """Keys and values of one block in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype_bytes * self.block_tokens

    @property
    def block_bytes(self) -> int:
        return self.num_layers * self.layer_bytes


class BumpAllocator:
    """Consecutive pieces of one buffer, given back all at once (Aegaeon §5.2).

    Weights come and go as whole models: no hole ever opens, and freeing costs nothing.
    """

    def __init__(self, capacity_bytes: int, align_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.align_bytes = align_bytes
        self.top_bytes = 0  # everything below is taken

    def alloc(self, num_bytes: int) -> int:
        """The offset of a new piece, a multiple of `align_bytes`; OutOfMemory where none fits."""
        offset = -(-self.top_bytes // self.align_bytes) * self.align_bytes
        if offset + num_bytes > self.capacity_bytes:
            raise OutOfMemory(
                f"a buffer of {self.capacity_bytes} bytes is taken up to {self.top_bytes}, and "
                f"{num_bytes} more are asked for"
            )
        self.top_bytes = offset + num_bytes
        return offset

    def reset(self) -> None:
        """Gives back every piece."""
        self.top_bytes = 0
