"""Live KV exchange (§4.2, Fig. 9): which KV moves where after a drop, and in which pieces.

After a drop the KV of ongoing requests is still where they ran. The weights of some of these layers
are now at another member. Until a (request, layer) has moved, its attention runs where its KV is:
remote attention. The published code has no remote attention (`victim_batches`). `moves.py` decides
the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from systems.kunserve.group import Group, Stage, members
from systems.kunserve.moves import Move


@dataclass(slots=True, frozen=True)
class Held:
    """Where the KV of one request is."""

    request_id: int
    blocks: int  # of each layer
    places: tuple[Stage, ...]  # each layer at one member

    @property
    def slots(self) -> int:
        """Blocks times layers, over all places."""
        return sum(self.blocks * len(place.layers) for place in self.places)


def exchange_moves(
    held: Iterable[Held], groups: Sequence[Group], layers_per_move: int
) -> list[Move]:
    """The moves of all KV that is not at the member with its layer's weights.

    held: requests of `groups`. Before the drop they ran on one instance, or on a pipeline that has
    merged with other groups since. layers_per_move: layers of a request that move at once, at most.
    Raises ValueError for a request whose KV is outside its group.
    """
    group_of = {member: group for group in groups for member in members(group)}
    moves = []
    for request in held:
        group = group_of.get(request.places[0].member)
        for place in request.places:
            if group is None or group_of.get(place.member) is not group:
                raise ValueError(
                    f"request {request.request_id} has KV at {place.member}, which is in none of "
                    "the groups, or not in the one where the rest of its KV is"
                )
            for stage in group:
                if stage.member != place.member:
                    common = _common(place.layers, stage.layers)
                    moves += [
                        Move(
                            request.request_id,
                            layers,
                            place.member,
                            stage.member,
                            request.blocks * len(layers),
                        )
                        for layers in pieces(common, layers_per_move)
                    ]
    return moves


def _common(first: range, second: range) -> range:
    return range(max(first.start, second.start), min(first.stop, second.stop))


def pieces(whole: range, size: int) -> Iterator[range]:
    """`whole` (blocks or layers) in pieces of `size`; the last may be smaller."""
    for start in range(whole.start, whole.stop, size):
        yield range(start, min(start + size, whole.stop))


class LinkProfile(NamedTuple):
    """One direction of the link between two members, as profiled."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float) -> float:
        """Of one message."""
        return self.latency_s + num_bytes / self.bytes_per_s


def chunk_bytes(
    interval_s: float, activation_bytes: int, link: LinkProfile, slot_bytes: int
) -> int:
    """The "maximum KVCache transfer granularity": bytes that fit between two activations (§4.2).

    interval_s: between the sending of two activations, from the profile. Rounded down to whole
    slots, but at least one slot: if none fits, an activation waits for one slot.
    """
    room_s = interval_s - link.seconds(activation_bytes) - link.latency_s
    return max(1, int(room_s * link.bytes_per_s // slot_bytes)) * slot_bytes


def check_chunk(configured_bytes: int, slot_bytes: int, exchange_bytes: int) -> None:
    """Raises ValueError unless a chunk size that was set by hand is at least a slot, and at most
    the whole exchange."""
    if not slot_bytes <= configured_bytes <= exchange_bytes:
        raise ValueError(
            f"system.chunks.bytes={configured_bytes} must be at least a slot, {slot_bytes}"
            f", and at most the exchange, {exchange_bytes}"
        )


def victim_batches(held: Sequence[Held], batch_size: int) -> list[list[Held]]:
    """The published code's exchange: `batch_size` requests (8) at a time.

    No request of a batch decodes before all KV of the batch has moved. held: in order of service.
    """
    return [list(held[k : k + batch_size]) for k in range(0, len(held), batch_size)]
