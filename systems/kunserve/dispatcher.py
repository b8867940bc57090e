"""The global dispatcher (§4.3): balance, priorities, and overflow of the batch limit after a drop.

It balances like "existing cluster LLM serving systems". The load is that of Llumnix's code, whose
modules KunServe's dispatcher reuses (§5.1), in shares of a group's memory and per member. The batch
limit comes first, since after a drop "the insufficient computational power of this GPU may still
cause queuing delays". Requests over the limit go to a group with room. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple


class Load(NamedTuple):
    """The load of a group, or of an instance alone."""

    name: str
    members: int
    total_blocks: int  # of KV
    wanted_blocks: int  # by running and queued requests
    requests: int  # that run or wait
    lacking_tokens: int  # of their prompts, still to be computed
    batch_tokens: int  # what its micro-batches compute at once


def least_loaded(loads: Sequence[Load]) -> str:
    """The name of the least loaded group, the first among equals.

    First by the tokens over its maximum batch, divided by its members. Then by free memory per
    request of a member, as a share of the group's memory. Among equal instances this is
    `artifact_load` of `systems.llumnix.freeness`. By bytes, a group that has dropped would get all
    requests: it has more memory for KV, and no more computing power than its members.
    """
    return min(loads, key=_load).name


def _load(load: Load) -> tuple[float, float]:
    over = max(0, load.lacking_tokens - load.batch_tokens) / load.members
    if not load.requests:
        return over, -inf
    free = (load.total_blocks - load.wanted_blocks) / load.total_blocks
    return over, -free * load.members / load.requests


class Queued(NamedTuple):
    """A queued request."""

    request_id: int
    arrival_s: float
    kv_tokens: int  # needed to start
    priority: int = 0  # higher is more important


@dataclass(slots=True)
class Target:
    """A group, or an instance alone, as a place for queued requests."""

    name: str
    free_seats: int  # of all its micro-batches together; below 0: more run than the limit allows
    free_tokens: int  # of KV, at the stage with the least
    batch_tokens: int  # prompt tokens that its maximum batch still takes
    queue: list[Queued] = field(default_factory=list)


class Redistribution(NamedTuple):
    """The queues after a drop."""

    queues: dict[str, list[Queued]]  # {target: its queue in order of service}
    held: list[Queued]  # wait at the dispatcher until there are seats


def in_order(queue: Sequence[Queued]) -> list[Queued]:
    """More important requests first; among equals first come, first served."""
    return sorted(queue, key=lambda q: (-q.priority, q.arrival_s, q.request_id))


def redistribute(targets: Sequence[Target]) -> Redistribution:
    """New queues after a drop.

    Every target keeps the first requests of its queue for which its maximum batch has seats, KV and
    tokens. The others go, in order, to the target with the most free seats that has all three. The
    first request without room anywhere stops the rest, so that no request is overtaken for ever.
    """
    seats = {target.name: target.free_seats for target in targets}
    tokens = {target.name: target.free_tokens for target in targets}
    batch = {target.name: target.batch_tokens for target in targets}
    queues: dict[str, list[Queued]] = {target.name: [] for target in targets}
    overflow: list[Queued] = []

    def takes(name: str, request: Queued) -> bool:
        return seats[name] > 0 and batch[name] > 0 and tokens[name] >= request.kv_tokens

    def put(name: str, request: Queued) -> None:
        queues[name].append(request)
        seats[name] -= 1
        tokens[name] -= request.kv_tokens
        batch[name] -= request.kv_tokens

    for target in targets:
        own = in_order(target.queue)
        kept = 0
        while kept < len(own) and takes(target.name, own[kept]):
            put(target.name, own[kept])
            kept += 1
        overflow += own[kept:]
    overflow = in_order(overflow)
    placed = 0
    for request in overflow:
        able = [name for name in queues if takes(name, request)]
        if not able:
            break
        put(max(able, key=lambda name: (seats[name], tokens[name])), request)
        placed += 1
    return Redistribution(
        {name: in_order(queue) for name, queue in queues.items()}, overflow[placed:]
    )
