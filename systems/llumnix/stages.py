"""Copies the KV of a request that goes on decoding, stage by stage (Llumnix §4.2).

KV is append-only: full blocks never change, so they can be sent while the request runs. The next
stage sends what was written during the one before. The last stage is at a step boundary. It sends
the block that is being written, and the request continues at the target. KunServe's exchange and
restore are "a retrofitted version of Llumnix's live KVCache migration" (KunServe §4.2).
"""

from __future__ import annotations

from typing import NamedTuple


class Send(NamedTuple):
    """One stage."""

    blocks: range  # by their place in the request
    last: bool  # sent at a step boundary; the request then continues at the target


def next_stage(
    sent_blocks: int, computed_tokens: int, block_tokens: int, *, last_blocks: int = 1
) -> Send:
    """What to send next of a request with `computed_tokens` in KV and `sent_blocks` at the target.

    last_blocks: with so many blocks left or fewer, the stage is the last; at least 1, the block
    being written, else ValueError. Llumnix's code has 16, and gives up a migration that needs more
    than three stages (AlibabaPAI/llumnix, MIGRATION_LAST_STAGE_MAX_BLOCKS, MIGRATION_MAX_STAGES).
    """
    if last_blocks < 1:
        raise ValueError(f"last_blocks={last_blocks} must be at least 1, the block being written")
    total = -(-computed_tokens // block_tokens)
    if total - sent_blocks <= last_blocks:
        return Send(range(sent_blocks, total), last=True)
    return Send(range(sent_blocks, computed_tokens // block_tokens), last=False)
