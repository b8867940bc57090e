"""Copying the KV of a request that goes on decoding, stage by stage (Llumnix §4.2).

KV is append-only: full blocks never change, so they can be sent while the request runs. What is
written meanwhile is the next stage's. The last stage, with the block that is being written, is at a
step boundary, and the request goes on at the target. Used by KunServe's exchange and restore too
("a retrofitted version of Llumnix's live KVCache migration", KunServe §4.2).
"""

from __future__ import annotations

from typing import NamedTuple


class Send(NamedTuple):
    blocks: range  # of the request, by their place in it
    last: bool  # at a step boundary of the request; it goes on at the target when they are there


def next_stage(
    sent_blocks: int, computed_tokens: int, block_tokens: int, *, last_blocks: int = 1
) -> Send:
    """What to send next of a request with `computed_tokens` in KV, `sent_blocks` at the target.

    last_blocks: so few or fewer left to send make the last stage; at least 1, the block that is
    being written. Llumnix's code: 16, and a migration that needs more than three stages is given
    up (AlibabaPAI/llumnix, MIGRATION_LAST_STAGE_MAX_BLOCKS and MIGRATION_MAX_STAGES).
    """
    if last_blocks < 1:
        raise ValueError(f"last_blocks={last_blocks} must be at least 1, the block being written")
    total = -(-computed_tokens // block_tokens)
    if total - sent_blocks <= last_blocks:
        return Send(range(sent_blocks, total), last=True)
    return Send(range(sent_blocks, computed_tokens // block_tokens), last=False)
