"""Names for the contents of KV blocks: equal where a block and all before it hold equal tokens.

As vLLM does it (v0.32, vllm/v1/core/kv_cache_utils.py): a full block's hash is of its tokens and of
the hash of the block before it. A prompt is known by its ids, or by the streams that its tokens
come from (`Request.shared`), which need not be drawn to be told apart.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from struct import Struct

import numpy as np
import numpy.typing as npt

from harness.request import Request, Segments

HASH_BYTES = 16
PIECE = Struct("<3q").pack  # stream, first token in it, tokens


def block_hashes(request: Request, block_tokens: int) -> list[bytes]:
    """The hashes of the full blocks that other prompts may have too, in order. What follows a
    prompt's shared part, and what was generated, is the request's own and has none here; but of a
    session's turn the answer has, since the next turn's prompt begins with it."""
    if request.prompt is not None:
        return _of_ids(request.prompt.ids, block_tokens)
    known = request.prompt_tokens if request.turn is None else request.known_tokens
    return _of_segments(cut(request.shared or (), known), block_tokens)


def cut(segments: Segments, num_tokens: int) -> Segments:
    """The segments of the first `num_tokens` tokens."""
    found = []
    for stream, tokens in segments:
        if num_tokens <= 0:
            break
        found.append((stream, min(tokens, num_tokens)))
        num_tokens -= tokens
    return tuple(found)


def _of_ids(ids: npt.NDArray[np.int32], block_tokens: int) -> list[bytes]:
    found, before = list[bytes](), b""
    for end in range(block_tokens, len(ids) + 1, block_tokens):
        tokens = np.ascontiguousarray(ids[end - block_tokens : end], "<i4").tobytes()
        before = blake2b(before + tokens, digest_size=HASH_BYTES).digest()
        found.append(before)
    return found


@lru_cache(maxsize=4096)
def _of_segments(segments: Segments, block_tokens: int) -> list[bytes]:
    found, before = list[bytes](), b""
    content, room = b"", block_tokens  # of the block that is being filled
    for stream, tokens in segments:
        offset = 0
        while offset < tokens:
            taken = min(room, tokens - offset)
            content += PIECE(stream, offset, taken)
            offset, room = offset + taken, room - taken
            if not room:
                before = blake2b(before + content, digest_size=HASH_BYTES).digest()
                found.append(before)
                content, room = b"", block_tokens
    return found
