"""Which tensors a consumer moves when leases shrink or grow (section 6, control loop). Pure.

Every n iterations the consumer asks the coordinator which leases are overdrawn and which have room.
It moves shards out of overdrawn leases to DRAM, and from DRAM into leases with room. The paper does
not say which tensors. Here shards leave in reverse order of need until the lease is within its
capacity. They come back in order of need until the lease is full.

The artifact empties a lease as soon as a part of it is reclaimed. A device there takes tensors back
only if it holds nothing in its lease, and if all its tensors in DRAM fit into the lease at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from systems.aqua.tensors import DRAM, Place, Shard, Tensors


class Move(NamedTuple):
    """A shard moves to another place."""

    shard: Shard
    num_bytes: int
    to: Place


def evacuations(
    tensors: Tensors,
    overdrawn_bytes: Mapping[str, int],
    needed: Sequence[Hashable],
    *,
    whole_leases: bool = False,
) -> list[Move]:
    """Moves out of each overdrawn lease, of at least as many bytes as it is overdrawn.

    overdrawn_bytes: {lease: bytes}. needed: tensors in the order in which they will be needed;
    others count as needed later. whole_leases: move everything out of such a lease.
    """
    moves = []
    for lease, overdrawn in overdrawn_bytes.items():
        left = overdrawn
        for shard in reversed(_by_need(tensors.shards_in(Place(lease)), needed)):
            if left <= 0:
                break
            moves.append(Move(shard, tensors.size(shard), DRAM))
            if not whole_leases:
                left -= tensors.size(shard)
    return moves


def returns(
    tensors: Tensors,
    rooms: Sequence[Mapping[str, int]],
    needed: Sequence[Hashable],
    *,
    all_or_nothing: bool = False,
) -> list[Move]:
    """Moves from DRAM into leases. A shard that does not fit is passed over.

    rooms: as in `Tensors.allocate`. all_or_nothing: only if the device's leases hold nothing, and
    if all its shards in DRAM fit into one lease.
    """
    in_dram = _by_need(tensors.shards_in(DRAM), needed)
    moves = []
    for device, room in enumerate(rooms):
        shards = [shard for shard in in_dram if shard.device == device]
        if all_or_nothing:
            moves += _all_back(tensors, shards, room)
            continue
        free = dict(room)
        for shard in shards:
            size = tensors.size(shard)
            lease = next((name for name, left in free.items() if left >= size), None)
            if lease is not None:
                free[lease] -= size
                moves.append(Move(shard, size, Place(lease)))
    return moves


def _all_back(tensors: Tensors, shards: Sequence[Shard], room: Mapping[str, int]) -> list[Move]:
    if any(tensors.bytes_in(Place(lease)) for lease in room):
        return []
    total = sum(tensors.size(shard) for shard in shards)
    lease = next((name for name, left in room.items() if left >= total), None)
    if lease is None:
        return []
    return [Move(shard, tensors.size(shard), Place(lease)) for shard in shards]


def _by_need(shards: Sequence[Shard], needed: Sequence[Hashable]) -> list[Shard]:
    """Shards of the tensors `needed`, in their order; then the other shards, unchanged."""
    rank = {tensor: i for i, tensor in enumerate(needed)}
    return sorted(shards, key=lambda shard: rank.get(shard.tensor, len(rank)))
