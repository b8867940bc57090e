"""The three steps from an overloaded and a loading instance to two equal ones (§5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from systems.blitzscale.zigzag import Queued


class Step(Enum):
    """Of a live pair; in each, waiting and new requests stand in the target's queue."""

    REDIRECT = 1  # no layer is there: the source takes whole batches from that queue
    COOPERATE = 2  # from the first layer on: batches begin on the target (`zigzag`)
    REDISTRIBUTE = 3  # all layers are there: requests are divided and the pair ends


def step(loaded: int, num_layers: int) -> Step:
    if loaded == 0:
        return Step.REDIRECT
    return Step.COOPERATE if loaded < num_layers else Step.REDISTRIBUTE


def redistributed(
    queue: Sequence[Queued], tokens: Sequence[int], source_tokens: int
) -> tuple[list[int], list[int]]:
    """Step 3: the numbers of the batches that stay with the target, and that the source gets.

    `tokens[i]` is of `queue[i]`, `source_tokens` of what the source is at. Batches that the target
    has begun stay there, where the KV of their first layers is. The others go in order to whom has
    fewer tokens by then, which divides them evenly.
    """
    target, source = [], []
    held = sum(n for batch, n in zip(queue, tokens, strict=True) if batch.executed)
    for batch, num_tokens in zip(queue, tokens, strict=True):
        if batch.executed:
            target.append(batch.number)
        elif held <= source_tokens:
            target.append(batch.number)
            held += num_tokens
        else:
            source.append(batch.number)
            source_tokens += num_tokens
    return target, source
