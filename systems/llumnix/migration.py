"""Which request migrates, from which instance to which (Llumnix §4.4), in three versions.

`paired` is the paper's rule: the instance with the least freeness is paired with the freest one.
`artifact_paired` is the rule of Llumnix's public code. `queued_moves` is the rule that KunServe's
public code calls Llumnix. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from systems.llumnix.freeness import InstanceLoad, Running, artifact_load, freeness


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


def paired(
    loads: Sequence[InstanceLoad],
    config: PairConfig,
    headroom_blocks: Mapping[int, int] | None = None,
) -> list[Pair]:
    """Pairs the least free source with the freest target, then the next two, and so on.

    An instance is in one pair at most. headroom_blocks: as in `virtual_usage`.
    """
    free = {load.name: freeness(load, headroom_blocks) for load in loads}
    names = sorted(free, key=lambda name: (free[name], name))
    sources = [name for name in names if free[name] < config.source_below]
    targets = [name for name in reversed(names) if free[name] > config.target_above]
    return [Pair(*pair) for pair in zip(sources, targets, strict=False)]


def victim(running: Sequence[Running]) -> Running | None:
    """The request that migrates: the least important one, among equals the shortest; None if no
    request runs."""
    return min(running, key=lambda r: (r.priority, r.blocks, r.request_id), default=None)


def artifact_paired(
    loads: Sequence[InstanceLoad], threshold: float, killed: frozenset[str] = frozenset()
) -> list[Pair]:
    """The public code's "balanced" pairs: the busiest with the least busy, by `artifact_load`.

    threshold: -3 in the code. killed: instances with a preempted request; they are sources whatever
    their load is. A pair counts if moving the source's last running request leaves the target at
    most at the threshold, and the source busier than the target by less than before.
    """
    load_of = {load.name: artifact_load(load) for load in loads}
    by_name = {load.name: load for load in loads}
    names = sorted(load_of, key=lambda name: (load_of[name], name))
    sources = [n for n in reversed(names) if n in killed or load_of[n] > threshold]
    targets = [n for n in names if n not in killed and load_of[n] < threshold]
    pairs = []
    for source, target in zip(sources, targets, strict=False):
        if not by_name[source].running:
            continue
        left, right = _after(by_name[source], by_name[target])
        before = load_of[source] - load_of[target]
        if right <= threshold and 0 < left - right < before:
            pairs.append(Pair(source, target))
    return pairs


def _after(source: InstanceLoad, target: InstanceLoad) -> tuple[float, float]:
    """The loads of source and target after the source's last running request has moved."""
    last = source.running[-1]
    return (
        artifact_load(replace(source, running=source.running[:-1])),
        artifact_load(replace(target, running=[*target.running, last])),
    )


class QueuedMove(NamedTuple):
    """A queued request that moves to another instance's queue."""

    place: int  # in the source's queue
    target: str  # name of an instance


def queued_moves(source: InstanceLoad, others: Sequence[InstanceLoad]) -> list[QueuedMove]:
    """Llumnix with migration by KunServe's code: queued requests move, running ones do not.

    If the queue needs at least the blocks that are free, its shortest requests go to the instance
    with the most to spare, until half of the difference between the two has gone
    (SJTU-IPADS/kunserve@ba746905).
    """
    spare = {load.name: _spare(load) for load in others}
    own = _spare(source)
    if own > 0 or not source.queued_blocks or not spare:
        return []
    target = max(spare, key=lambda name: (spare[name], name))
    left = (spare[target] - own) / 2
    moves = []
    for place in sorted(
        range(len(source.queued_blocks)), key=lambda k: (source.queued_blocks[k], k)
    ):
        left -= source.queued_blocks[place]
        if left < 0:
            break
        moves.append(QueuedMove(place, target))
    return moves


def _spare(load: InstanceLoad) -> int:
    """Free blocks minus the blocks that the queue needs."""
    return load.total_blocks - load.used_blocks - sum(load.queued_blocks)
