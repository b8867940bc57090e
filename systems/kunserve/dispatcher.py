"""The global dispatcher (§4.3): balance, priorities, and what is over the cap after a drop.

Balancing is Llumnix's, as the paper says ("similar to existing cluster LLM serving systems"): the
freest instance or group (`systems.llumnix.freeness`). New here is the redistribution: "requests
that cannot be executed in the current maximum batch" go back to the dispatcher, and from there to
whoever has seats. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Queued(NamedTuple):
    request_id: int
    arrival_s: float
    kv_tokens: int  # that it needs to start
    priority: int = 0  # higher is more important


@dataclass(slots=True)
class Target:
    """A group, or an instance alone."""

    name: str
    free_seats: int  # of all its micro-batches together; below 0: more run than the cap allows
    free_tokens: int  # of KV, at the stage that has the least
    queue: list[Queued] = field(default_factory=list)


class Redistribution(NamedTuple):
    queues: dict[str, list[Queued]]  # by target, each in order of service
    held: list[Queued]  # by the dispatcher, until there are seats


def in_order(queue: Sequence[Queued]) -> list[Queued]:
    """The more important first, then first come, first served."""
    return sorted(queue, key=lambda q: (-q.priority, q.arrival_s, q.request_id))


def redistribute(targets: Sequence[Target]) -> Redistribution:
    """After a drop: every target keeps of its queue what it has seats and KV for, in order; the
    rest goes, in order, to the target with the most seats left that has both.

    The first that has room nowhere stops the rest, so that nobody is overtaken for ever.
    """
    seats = {target.name: target.free_seats for target in targets}
    tokens = {target.name: target.free_tokens for target in targets}
    queues: dict[str, list[Queued]] = {target.name: [] for target in targets}
    overflow: list[Queued] = []

    def takes(name: str, request: Queued) -> bool:
        return seats[name] > 0 and tokens[name] >= request.kv_tokens

    def put(name: str, request: Queued) -> None:
        queues[name].append(request)
        seats[name] -= 1
        tokens[name] -= request.kv_tokens

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
