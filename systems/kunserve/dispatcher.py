"""The global dispatcher (§4.3): balance, priorities, and overflow of the batch limit after a drop.

It balances like "existing cluster LLM serving systems". The load is that of Llumnix's code, whose
modules KunServe's dispatcher reuses (§5.1), in shares of a group's memory and per member. The batch
limit comes first, since after a drop "the insufficient computational power of this GPU may still
cause queuing delays". Requests over the limit go to a group with room. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from harness.request import Request
from systems.serving.load import Load


def dispatch_load(load: Load) -> tuple[float, float]:
    """The load by which groups are compared: a new request goes to the one with the least.

    First by the tokens over its maximum batch, divided by its members. Then by free memory per
    request of a member, as a share of the group's memory. Among equal instances this is
    `artifact_load` of `systems.llumnix.freeness`. By bytes, a group that has dropped would get all
    requests: it has more memory for KV, and no more computing power than its members.
    """
    over = max(0, load.lacking_tokens - load.batch_tokens) / load.members
    if not load.num_requests:
        return over, -inf
    free = load.spare_blocks / load.total_blocks
    return over, -free * load.members / load.num_requests


@dataclass(slots=True)
class Target:
    """A group, or an instance alone, as a place for queued requests."""

    free_seats: int  # seats of all its micro-batches; below 0: more run than the limit allows
    free_tokens: int  # free tokens of KV, at the stage with the least
    batch_tokens: int  # prompt tokens that its maximum batch still takes
    queue: list[Request] = field(default_factory=list)

    def takes(self, request: Request) -> bool:
        room = self.free_seats > 0 and self.batch_tokens > 0
        return room and self.free_tokens >= request.known_tokens

    def put(self, request: Request) -> None:
        self.queue.append(request)
        self.free_seats -= 1
        self.free_tokens -= request.known_tokens
        self.batch_tokens -= request.known_tokens


def by_importance(queue: Iterable[Request]) -> list[Request]:
    """Sorts requests: more important ones first; among equals first come, first served."""
    return sorted(queue, key=lambda r: (-r.priority, r.arrival_s, r.request_id))


def redistribute(targets: Sequence[Target]) -> list[Request]:
    """Makes new queues after a drop, in order of service; they become the queues of `targets`.
    Returns the requests that wait at the dispatcher until there are seats.

    Every target keeps the first requests of its queue for which its maximum batch has seats, KV and
    tokens. The others go, in order, to the target with the most free seats that has all three. The
    first request without room anywhere stops the rest, so that no request is overtaken for ever.
    """
    overflow: list[Request] = []
    for target in targets:
        own, target.queue = by_importance(target.queue), []
        while own and target.takes(own[0]):
            target.put(own.pop(0))
        overflow += own
    overflow = by_importance(overflow)
    while overflow:
        able = [target for target in targets if target.takes(overflow[0])]
        if not able:
            break
        best = max(able, key=lambda target: (target.free_seats, target.free_tokens))
        best.put(overflow.pop(0))
    for target in targets:
        target.queue = by_importance(target.queue)
    return overflow
