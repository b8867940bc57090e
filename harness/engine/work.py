"""One iteration's work in plain numbers, as it travels from the harness to a worker.

Everything an iteration needs is in it, so a worker remembers nothing about requests. Knows
neither torch nor requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(slots=True)
class ChunkWork:
    """Compute `ids` at positions context…; `samples`: they complete the known tokens, so the
    next one is picked."""

    ids: Sequence[int]
    context: int
    samples: bool
    blocks: Sequence[int]  # at least those of context + len(ids) tokens


@dataclass(slots=True)
class DecodeWork:
    """Compute the token `token_id` at `position` and pick the next one."""

    token_id: int
    position: int
    blocks: Sequence[int]  # for every step that may follow


def pack(
    chunks: Sequence[ChunkWork], decodes: Sequence[DecodeWork]
) -> tuple[dict[str, Any], bytes]:
    """The counts as a header; the ids, first of tokens and then of blocks, as int32."""
    numbers = array("i")
    for chunk in chunks:
        numbers.extend(chunk.ids)
    numbers.extend(decode.token_id for decode in decodes)
    for blocks in [c.blocks for c in chunks] + [d.blocks for d in decodes]:
        numbers.extend(blocks)
    header = {
        "chunks": [(c.context, len(c.ids), len(c.blocks), c.samples) for c in chunks],
        "decodes": [(d.position, len(d.blocks)) for d in decodes],
    }
    return header, numbers.tobytes()


def unpack(header: Mapping[str, Any], payload: bytes) -> tuple[list[ChunkWork], list[DecodeWork]]:
    """What `pack` was given."""
    numbers = iter(array("i", payload))
    chunk_ids = [list(islice(numbers, num_tokens)) for _, num_tokens, _, _ in header["chunks"]]
    decode_ids = list(islice(numbers, len(header["decodes"])))
    chunks = [
        ChunkWork(ids, context, samples, list(islice(numbers, num_blocks)))
        for ids, (context, _, num_blocks, samples) in zip(chunk_ids, header["chunks"], strict=True)
    ]
    decodes = [
        DecodeWork(token_id, position, list(islice(numbers, num_blocks)))
        for token_id, (position, num_blocks) in zip(decode_ids, header["decodes"], strict=True)
    ]
    return chunks, decodes
