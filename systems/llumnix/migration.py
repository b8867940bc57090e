"""Which request migrates, from which instance to which (Llumnix §4.4), in two versions.

`paired` is the paper's rule: the instance with the least freeness is paired with the freest one.
`queued_moves` is the rule that KunServe's public code calls Llumnix. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.request import Request
from systems.llumnix.freeness import freeness
from systems.serving.load import Load


@dataclass(kw_only=True, slots=True)
class PairConfig:
    """Thresholds in KV blocks per request. Raises ValueError if the first exceeds the second."""

    source_below: float  # an instance with less freeness gives requests away
    target_above: float  # an instance with more freeness takes requests

    def __post_init__(self) -> None:
        if self.source_below > self.target_above:
            raise ValueError(
                f"system.pairs.source_below={self.source_below} must not exceed "
                f"system.pairs.target_above={self.target_above}: an instance would be a source and "
                "a target at once"
            )


class Pair(NamedTuple):
    """Names of two instances."""

    source: str
    target: str


def paired(loads: Sequence[Load], config: PairConfig) -> list[Pair]:
    """Pairs the least free source with the freest target, then the next two, and so on.

    An instance is in one pair at most.
    """
    free = {load.name: freeness(load) for load in loads}
    names = sorted(free, key=lambda name: (free[name], name))
    sources = [name for name in names if free[name] < config.source_below]
    targets = [name for name in reversed(names) if free[name] > config.target_above]
    return [Pair(*pair) for pair in zip(sources, targets, strict=False)]


def victim(decoding: Sequence[Request], blocks_for: Callable[[int], int]) -> Request | None:
    """The request that migrates: the least important one, among equals the shortest; None if none
    decodes. blocks_for: the KV blocks of so many tokens."""

    def rank(request: Request) -> tuple[int, int, int]:
        return request.priority, blocks_for(request.known_tokens), request.request_id

    return min(decoding, key=rank, default=None)


class QueuedMove(NamedTuple):
    """A queued request that moves to another instance's queue."""

    place: int  # in the source's queue
    target: str  # name of an instance


def queued_moves(
    source: Load, queued_blocks: Sequence[int], others: Sequence[Load]
) -> list[QueuedMove]:
    """Llumnix with migration by KunServe's code: queued requests move, running ones do not.

    If the queue needs at least the blocks that are free, its shortest requests go to the instance
    with the most to spare, until half of the difference between the two has gone
    (SJTU-IPADS/kunserve@ba746905).
    """
    own = source.spare_blocks
    if own > 0 or not queued_blocks or not others:
        return []
    target = max(others, key=lambda load: (load.spare_blocks, load.name))
    left = (target.spare_blocks - own) / 2
    moves = []
    for blocks, place in sorted((blocks, k) for k, blocks in enumerate(queued_blocks)):
        left -= blocks
        if left < 0:
            break
        moves.append(QueuedMove(place, target.name))
    return moves
