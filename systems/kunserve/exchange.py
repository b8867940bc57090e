"""Live KV exchange (§4.2, Fig. 9): which KV moves where after a drop, and in which pieces.

After a drop the KV of ongoing requests is still where they ran. The weights of some of these layers
are now at another member. Until a (request, layer) has moved, its attention runs where its KV is:
remote attention. `moves.py` decides the order. The published code has no remote attention: eight
requests at a time stop while their KV is exchanged (`GroupKv._blocking`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from harness.cluster import Cluster
from harness.configuration.checks import positive
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import remote_attention_bytes
from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, Stage
from systems.kunserve.moves import Move


@dataclass(kw_only=True, slots=True)
class ChunkConfig:
    """Chunks of KV on a link (§4.2). Raises ValueError unless values are above 0."""

    bytes: int | None  # of a message of one device; null: what fits between two activations
    link_bytes_per_s: float
    link_latency_s: float
    batch: int  # requests of the micro-batch whose interval is profiled
    context_tokens: int  # of each of these requests

    def __post_init__(self) -> None:
        if not self.link_bytes_per_s > 0:
            raise ValueError(
                f"system.chunks.link_bytes_per_s={self.link_bytes_per_s} must be above 0: without "
                "a link (hardware.nic_bytes_per_s) members exchange no KV"
            )
        positive(self, "system.chunks", "batch", "context_tokens")


@dataclass(slots=True, frozen=True)
class Held:
    """The places where the KV of one request is."""

    request_id: int
    blocks: int  # KV blocks of each layer
    places: tuple[Stage, ...]  # each layer at one member


def moves_to(request: Held, group: Group) -> list[Move]:
    """The moves of the request's KV that bring each layer to the member of `group` that has it."""
    moves = []
    for place in request.places:
        for stage in group:
            first = max(place.layers.start, stage.layers.start)
            layers = range(first, min(place.layers.stop, stage.layers.stop))
            if layers and stage.member != place.member:
                slots = request.blocks * len(layers)
                moves.append(Move(request.request_id, layers, place.member, stage.member, slots))
    return moves


def exchange_moves(held: Iterable[Held], group: Group) -> list[Move]:
    """The moves of all KV that is not at the member with its layer's weights.

    held: requests of `group`. Before the drop they ran on one instance, or on a pipeline that has
    merged with other groups since: all their KV is at members.
    """
    return [move for request in held for move in moves_to(request, group)]


class LinkProfile(NamedTuple):
    """One direction of the link between two members, as profiled."""

    bytes_per_s: float
    latency_s: float

    def seconds(self, num_bytes: float) -> float:
        """Seconds that one message of `num_bytes` takes."""
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


def step_s(chunks: ChunkConfig, model: ModelSpec, cluster: Cluster) -> float:
    """A decode step of the profiled micro-batch through all layers."""
    context_tokens = chunks.batch * chunks.context_tokens
    return cluster.profile.decode_step_s(model, chunks.batch, context_tokens)


def hop_s(chunks: ChunkConfig, model: ModelSpec) -> float:
    """The time of its activations on the link to the next stage."""
    activation_bytes = chunks.batch * model.hidden_size * model.dtype_bytes
    return chunks.link_latency_s + activation_bytes / chunks.link_bytes_per_s


def message_bytes(chunks: ChunkConfig, instance: ElasticInstance, cluster: Cluster) -> int:
    """Bytes of KV of a message of one device: as configured, or what fits between two activations.
    Raises ValueError as `check_chunk`."""
    page, model = instance.page_bytes, instance.model
    if chunks.bytes is not None:
        check_chunk(chunks.bytes, page, instance.kv.num_pages * page // 2)
        return chunks.bytes
    link = LinkProfile(chunks.link_bytes_per_s, chunks.link_latency_s)
    # Each layer sends for its attention.
    interval_s = step_s(chunks, model, cluster) / model.num_layers
    there = remote_attention_bytes(model).there * chunks.batch // model.tp
    return chunk_bytes(interval_s, there, link, page)


def check_chunk(configured_bytes: int, slot_bytes: int, exchange_bytes: int) -> None:
    """Raises ValueError unless a chunk size that was set by hand is at least a slot, and at most
    the whole exchange."""
    if not slot_bytes <= configured_bytes <= exchange_bytes:
        raise ValueError(
            f"system.chunks.bytes={configured_bytes} must be at least a slot, {slot_bytes}"
            f", and at most the exchange, {exchange_bytes}"
        )
