"""AQUA TENSORS (section 6) as a ledger: where a consumer's swapped state lies. Pure.

A tensor lies whole in a lease of the consumer's own producer, or in host DRAM. DRAM is where it
goes when no lease has room for it. The owner of a tensor asks where it is and is not told when it
moves. A tensor-parallel group acts as one device: bytes are of each device's shard, and its
producer has as many devices.

Room in a lease is the coordinator's to give (`coordinator/ledger.py`), room in DRAM is counted
here. Whoever moves bytes does so around these calls: it adds a tensor before it copies in, and
frees or migrates it once the copy out is done.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from harness.request import Request


@dataclass(slots=True, eq=False)
class Tensor:
    """A copy of KV outside the device. `block_owner`: the request that owns its blocks where it
    lies: the paged request itself, or a `copy_owner`, which never runs. `request`: the paged one;
    None: it is a cached prefix."""

    name: Hashable
    num_bytes: int
    block_owner: Request
    request: Request | None = None
    lease: str | None = None  # None: it is in host DRAM
    allocations: list[str] = field(default_factory=list)  # names at the coordinator
    number: int = 0  # the older of two has the lower one

    @property
    def paged(self) -> Request:
        assert self.request is not None, "it is no cached prefix"
        return self.request


class Tensors:
    """The tensors of one consumer, oldest first. `dram_bytes`: the host's, for tensors in no
    lease."""

    def __init__(self, dram_bytes: int) -> None:
        self._dram_bytes = dram_bytes
        self._tensors: dict[Hashable, Tensor] = {}
        self._num_added = 0
        # Of each lease, and of DRAM, what is there, in any order, and its bytes.
        self._places: dict[str | None, dict[Hashable, Tensor]] = {}
        self._bytes: dict[str | None, int] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._tensors

    def __getitem__(self, name: Hashable) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._tensors.values())

    @property
    def places(self) -> Mapping[str | None, Mapping[Hashable, Tensor]]:
        """{lease, or None for DRAM: {name: a tensor there}}, in any order."""
        return self._places

    def in_place(self, lease: str | None) -> list[Tensor]:
        return sorted(self._places.get(lease, {}).values(), key=lambda tensor: tensor.number)

    def bytes_in(self, lease: str | None) -> int:
        return self._bytes.get(lease, 0)

    def fits(self, num_bytes: int, lease: str | None) -> bool:
        """Whether there is room for so much more."""
        return lease is not None or num_bytes <= self._dram_bytes - self.bytes_in(None)

    def add(self, tensor: Tensor) -> bool:
        """Adds the tensor. False, and no change, if it is to be in DRAM, which has no room."""
        if not self.fits(tensor.num_bytes, tensor.lease):
            return False
        self._num_added += 1
        tensor.number = self._num_added
        self._tensors[tensor.name] = tensor
        self._lay(tensor)
        return True

    def move(self, tensor: Tensor, lease: str | None) -> None:
        """The tensor lies in `lease` from now on, or, with None, in DRAM."""
        self._lift(tensor)
        tensor.lease = lease
        self._lay(tensor)

    def grow(self, tensor: Tensor, num_bytes: int) -> None:
        self._lift(tensor)
        tensor.num_bytes += num_bytes
        self._lay(tensor)

    def free(self, name: Hashable) -> Tensor:
        tensor = self._tensors.pop(name)
        self._lift(tensor)
        return tensor

    def lose(self, lease: str) -> list[Tensor]:
        """Removes and returns the tensors of a lease that is gone with its producer."""
        return [self.free(tensor.name) for tensor in self.in_place(lease)]

    def _lay(self, tensor: Tensor) -> None:
        self._places.setdefault(tensor.lease, {})[tensor.name] = tensor
        self._bytes[tensor.lease] = self.bytes_in(tensor.lease) + tensor.num_bytes

    def _lift(self, tensor: Tensor) -> None:
        self._bytes[tensor.lease] -= tensor.num_bytes
        del self._places[tensor.lease][tensor.name]
        if not self._places[tensor.lease]:  # leases end
            del self._places[tensor.lease], self._bytes[tensor.lease]
