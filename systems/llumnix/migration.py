"""Which request migrates from where to where (Llumnix §4.4), three ways.

`paired` is the paper's: instances that lack freeness and instances that have some, the least free
with the freest. `artifact_paired` is what Llumnix's public code does. `queued_moves` is what
KunServe's public code compares itself with under the name of Llumnix. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from systems.llumnix.freeness import InstanceLoad, Running, artifact_load, freeness


@dataclass(kw_only=True, slots=True)
class PairConfig:
    source_below: float  # freeness under which an instance gives requests away
    target_above: float  # freeness over which it takes them

    def __post_init__(self) -> None:
        if self.source_below > self.target_above:
            raise ValueError(
                f"system.pairs.source_below={self.source_below} must not exceed "
                f"system.pairs.target_above={self.target_above}: an instance would be a source and "
                "a target at once"
            )


class Pair(NamedTuple):
    source: str
    target: str


def paired(
    loads: Sequence[InstanceLoad],
    config: PairConfig,
    headroom_blocks: Mapping[int, int] | None = None,
) -> list[Pair]:
    """Sources from the least free up, targets from the freest down, each in one pair."""
    free = {load.name: freeness(load, headroom_blocks) for load in loads}
    names = sorted(free, key=lambda name: (free[name], name))
    sources = [name for name in names if free[name] < config.source_below]
    targets = [name for name in reversed(names) if free[name] > config.target_above]
    return [Pair(*pair) for pair in zip(sources, targets, strict=False)]


def victim(running: Sequence[Running]) -> Running | None:
    """Who migrates from a source: the least important, and among equals the shortest."""
    return min(running, key=lambda r: (r.priority, r.blocks, r.request_id), default=None)


def artifact_paired(
    loads: Sequence[InstanceLoad], threshold: float, killed: frozenset[str] = frozenset()
) -> list[Pair]:
    """Its "balanced" pairs: busiest with least busy by `artifact_load`, -3 for the threshold.

    killed: instances with a preempted request, which are sources whatever their load. A pair counts
    if the last running request of the source, moved, leaves the target under the threshold and the
    source no less busy than the target, but nearer to it.
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
    """Both loads if the source's last running request ran at the target."""
    last = source.running[-1]
    return (
        artifact_load(replace(source, running=source.running[:-1])),
        artifact_load(replace(target, running=[*target.running, last])),
    )


class QueuedMove(NamedTuple):
    place: int  # in the source's queue
    target: str


def queued_moves(source: InstanceLoad, others: Sequence[InstanceLoad]) -> list[QueuedMove]:
    """KunServe's code for Llumnix with migration: queued requests, not running ones, move.

    Where the queue needs at least what is free, its shortest requests go to the instance that has
    the most to spare, until half of the difference between the two has gone. From
    SJTU-IPADS/kunserve@ba746905.
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
    """Blocks that are free, less those that the queue needs."""
    return load.total_blocks - load.used_blocks - sum(load.queued_blocks)
