"""Which tensors a consumer moves when leases shrink or grow (section 6, control loop). Pure.

Every n iterations the consumer asks the coordinator which leases are overdrawn and which have room.
It moves tensors out of overdrawn leases to DRAM, and from DRAM into leases with room. The paper
does not say which tensors. Here they leave in reverse order of need until the lease is within its
capacity. They come back in order of need until the lease is full.

The artifact empties a lease as soon as a part of it is reclaimed. A device there takes tensors back
only if it holds nothing in its lease, and if all its tensors in DRAM fit into the lease at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from systems.aqua.tensors import Tensor, Tensors

Bytes = Mapping[str, int]  # bytes by lease
Names = Sequence[Hashable]  # names of tensors


def evacuations(
    tensors: Tensors, overdrawn_bytes: Bytes, needed: Names, *, whole_leases: bool = False
) -> list[Tensor]:
    """The tensors that leave each overdrawn lease, of at least as many bytes as it is overdrawn.

    needed: in the order in which they will be needed; others count as needed later. whole_leases:
    move everything out of such a lease.
    """
    leaving = []
    for lease, left in overdrawn_bytes.items():
        for tensor in reversed(_by_need(tensors.in_place(lease), needed)):
            if left <= 0:
                break
            leaving.append(tensor)
            if not whole_leases:
                left -= tensor.num_bytes
    return leaving


def returns(
    tensors: Tensors, free_bytes: Bytes, needed: Names, *, all_or_nothing: bool = False
) -> list[Tensor]:
    """The tensors that go from DRAM into leases. One that does not fit is passed over.

    free_bytes: of the oldest lease first. all_or_nothing: only if the leases hold nothing, and
    if all tensors in DRAM fit into one of them.
    """
    in_dram = _by_need(tensors.in_place(None), needed)
    if all_or_nothing:
        holds = any(tensors.bytes_in(lease) for lease in free_bytes)
        room = max(free_bytes.values(), default=0)
        return [] if holds or sum(each.num_bytes for each in in_dram) > room else in_dram
    coming, free = [], dict(free_bytes)
    for tensor in in_dram:
        lease = next((name for name, left in free.items() if left >= tensor.num_bytes), None)
        if lease is not None:
            free[lease] -= tensor.num_bytes
            coming.append(tensor)
    return coming


def _by_need(tensors: Sequence[Tensor], needed: Names) -> list[Tensor]:
    """Sorts tensors: those of `needed`, in its order; then the others, unchanged."""
    rank = {name: i for i, name in enumerate(needed)}
    return sorted(tensors, key=lambda tensor: rank.get(tensor.name, len(rank)))
