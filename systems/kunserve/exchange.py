"""Live KV exchange (§4.2, Fig. 9): which KV goes where after a drop, and in what pieces.

After a drop the KV of ongoing requests lies where they ran, by layer, while the weights of half of
these layers are elsewhere. Until a (request, layer) has moved, its attention runs where its KV is
(remote attention; the published code has none, see `victim_batches`). In which order: `moves.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, Stage, members
from systems.kunserve.moves import Move


@dataclass(slots=True, frozen=True)
class Held:
    """Where one request's KV is."""

    request_id: int
    blocks: int  # of each layer
    places: tuple[Stage, ...]  # each layer at one member

    @property
    def slots(self) -> int:
        return sum(self.blocks * len(place.layers) for place in self.places)


def exchange_moves(
    held: Iterable[Held], groups: Sequence[Group], layers_per_move: int
) -> list[Move]:
    """All KV that lies at another member than its layer's weights do.

    held: requests of `groups`, run by one instance each or pipelined by a group that has merged
    with others since, whose KV moves again. layers_per_move: at most so many layers of a request
    change place at once. Raises ValueError for a request whose KV is outside its group.
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
    """`whole` in pieces of `size`, the last perhaps smaller; of blocks or of layers."""
    for start in range(whole.start, whole.stop, size):
        yield range(start, min(start + size, whole.stop))


class LinkProfile(NamedTuple):
    """One direction between two members, as profiled."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes / self.bytes_per_s


def chunk_bytes(
    interval_s: float, activation_bytes: int, link: LinkProfile, slot_bytes: int
) -> int:
    """The "maximum KVCache transfer granularity": what fits between two activations (§4.2).

    interval_s: from one activation's sending to the next one's, from the profile. In whole slots,
    and one at least: where not even that fits, an activation waits for one slot.
    """
    room_s = interval_s - link.seconds(activation_bytes) - link.latency_s
    return max(1, int(room_s * link.bytes_per_s // slot_bytes)) * slot_bytes


def check_chunk(configured_bytes: int, slot_bytes: int, exchange_bytes: int) -> None:
    """Raises ValueError for a chunk size, set by hand, that makes no sense."""
    if not slot_bytes <= configured_bytes <= exchange_bytes:
        raise ValueError(
            f"system.chunks.bytes={configured_bytes} must be at least a slot, {slot_bytes}"
            f", and at most the exchange, {exchange_bytes}"
        )


class RemoteAttention(NamedTuple):
    """Bytes that one token's remote attention puts on the links, over `layers` layers."""

    there: int  # queries, keys and values; the paper's 672 KB for 14B
    back: int  # the output, which the paper does not count


def remote_attention_bytes(model: ModelSpec, layers: int) -> RemoteAttention:
    head = model.head_dim * model.dtype_bytes * layers
    return RemoteAttention(
        there=(model.num_heads + 2 * model.num_kv_heads) * head, back=model.num_heads * head
    )


def victim_batches(held: Sequence[Held], batch_size: int) -> list[list[Held]]:
    """The published code's exchange: so many requests (8) at a time, none of which decodes before
    all KV of its batch has come. `held`: in the order of their service."""
    return [list(held[k : k + batch_size]) for k in range(0, len(held), batch_size)]
