"""AQUA TENSORS (section 6) as a ledger: where each shard of a consumer's swapped state lies. Pure.

A tensor has one shard for each device of its consumer (tensor parallelism); each shard lies whole
in a lease of that device's own producer, or in host DRAM. DRAM is where it goes when the lease is
full or gone. The owner of a tensor asks where it is and is not told when it moves.

Whoever moves bytes does so around these calls: it allocates before it copies in, and frees or
migrates once the copy out is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Place(NamedTuple):
    """A lease by its name at the coordinator; None: host DRAM."""

    lease: str | None


DRAM = Place(None)


@dataclass(slots=True)
class Tensor:
    shard_bytes: tuple[int, ...]
    places: list[Place]

    def bytes_by_place(self) -> Counter[Place]:
        found: Counter[Place] = Counter()
        for place, size in zip(self.places, self.shard_bytes, strict=True):
            found[place] += size
        return found


class Shard(NamedTuple):
    """That of the consumer's device `device`, counted from 0."""

    tensor: Hashable
    device: int


class Tensors:
    """Those of one consumer. `rooms`, of each of its devices: bytes that are free in each lease
    that it may use there, oldest first, as the coordinator has it."""

    def __init__(self, num_shards: int, dram_bytes: int) -> None:
        """`dram_bytes`: of the host's DRAM for tensors that are in no lease."""
        if num_shards < 1 or dram_bytes < 0:
            raise ValueError(
                f"num_shards={num_shards}, dram_bytes={dram_bytes}; valid: at least 1 and 0"
            )
        self.num_shards, self.dram_bytes = num_shards, dram_bytes
        self._tensors: dict[Hashable, Tensor] = {}
        self._bytes: Counter[Place] = Counter()

    def __contains__(self, tensor: Hashable) -> bool:
        return tensor in self._tensors

    def __iter__(self) -> Iterator[Hashable]:
        """Oldest first."""
        return iter(self._tensors)

    def allocate(
        self, name: Hashable, shard_bytes: Sequence[int], rooms: Sequence[Mapping[str, int]]
    ) -> tuple[Place, ...] | None:
        """Each shard's place: the first lease of its device with room for it, else DRAM. None, and
        no change: DRAM has no room for those that it would get."""
        if name in self._tensors:
            raise ValueError(f"tensor {name} is allocated already")
        if len(shard_bytes) != self.num_shards or min(shard_bytes, default=0) < 1:
            raise ValueError(
                f"tensor {name} has shards of {list(shard_bytes)} bytes; valid: {self.num_shards} "
                "of at least 1"
            )
        places = [
            next((Place(lease) for lease, free in room.items() if free >= size), DRAM)
            for size, room in zip(shard_bytes, rooms, strict=True)
        ]
        tensor = Tensor(tuple(shard_bytes), places)
        more = tensor.bytes_by_place()
        if more[DRAM] > self.dram_bytes - self.bytes_in(DRAM):
            return None
        self._tensors[name] = tensor
        self._bytes += more
        return tuple(places)

    def grow(self, name: Hashable, device: int, num_bytes: int) -> bool:
        """A shard is so much larger, where it lies. False, and no change: DRAM has no room. Room in
        a lease is the coordinator's to give."""
        tensor = self._tensor(name)
        place = tensor.places[device]
        if place == DRAM and num_bytes > self.dram_bytes - self.bytes_in(DRAM):
            return False
        sizes = list(tensor.shard_bytes)
        sizes[device] += num_bytes
        tensor.shard_bytes = tuple(sizes)
        self._bytes[place] += num_bytes
        return True

    def resolve(self, name: Hashable) -> tuple[Place, ...]:
        """Where each shard is now."""
        return tuple(self._tensor(name).places)

    def shard_bytes(self, name: Hashable) -> tuple[int, ...]:
        return self._tensor(name).shard_bytes

    def migrate(self, shard: Shard, to: Place) -> bool:
        """False, and no change: DRAM has no room. Room in a lease is the coordinator's to give."""
        tensor = self._tensor(shard.tensor)
        if tensor.places[shard.device] == to:
            return True
        size = tensor.shard_bytes[shard.device]
        if to == DRAM and size > self.dram_bytes - self.bytes_in(DRAM):
            return False
        self._bytes -= Counter({tensor.places[shard.device]: size})
        self._bytes += Counter({to: size})
        tensor.places[shard.device] = to
        return True

    def free(self, name: Hashable) -> tuple[Place, ...]:
        """Where its shards were."""
        places = self.resolve(name)
        self._bytes -= self._tensors.pop(name).bytes_by_place()
        return places

    def lose(self, lease: str) -> list[Hashable]:
        """A lease is gone with its producer: names the tensors with a shard in it, which are freed
        whole, for what is left of them is of no use."""
        lost = [name for name, each in self._tensors.items() if Place(lease) in each.places]
        for name in lost:
            self.free(name)
        return lost

    def shards_in(self, place: Place) -> list[Shard]:
        """Oldest tensor first."""
        return [
            Shard(name, device)
            for name, each in self._tensors.items()
            for device, where in enumerate(each.places)
            if where == place
        ]

    def size(self, shard: Shard) -> int:
        return self._tensor(shard.tensor).shard_bytes[shard.device]

    def bytes_in(self, place: Place) -> int:
        return self._bytes[place]

    def in_dram(self, name: Hashable) -> bool:
        """Some shard is: what a serving engine asks before it pages (section 7)."""
        return DRAM in self._tensor(name).places

    def _tensor(self, name: Hashable) -> Tensor:
        if name not in self._tensors:
            raise KeyError(f"no tensor {name}")
        return self._tensors[name]
