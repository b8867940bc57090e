"""AQUA's batch partitioning (section 7): which prompts share the device in the next time slice.

Pure functions over `ServiceOrder`, the same for every engine. Of the batch's b tokens, d are slots
for decodes and p = b - d are tokens for prefills. d is as large as memory allows. p goes to the
prompts with the fewest prefill tokens computed. d goes to the decodes with the fewest tokens
generated; the rest of d goes to prefills again. Filling stops when memory is exhausted: a prompt
without room ends the filling of its kind. The other kind is still tried, or a long prompt would
keep all decodes off the device. Ties go to the earlier arrival (the paper names no rule).

The paper does not say the following. d's upper bound is the number of decodes, fewest generated
tokens first, that fit on the device by themselves. Memory counts as in `Limits.reserved_blocks`.
While every prompt fits, the order is that of arrival, since Fig. 8 finds CFS and FCFS identical
without contention. Tokens from a cached prefix do not count as service.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse
from operator import attrgetter

from systems.aqua.prompt import Limits, Prompt, Slice
from systems.aqua.service_order import Place, ServiceOrder


def choose(order: ServiceOrder, *, fcfs: bool = False) -> Slice:
    """The next slice. fcfs: paged-out KV is in DRAM, so no prompt is preempted for fairness. Each
    prompt fits on the device by itself, to its end."""
    if fcfs or not order.contended:
        return in_order_of_arrival(order)
    return fair(order)


def in_order_of_arrival(order: ServiceOrder) -> Slice:
    """FCFS with admission control: prompts on the device stay; others join while they fit."""
    members = _admitted(order) if order.contended else list(order.prompts.values())
    return Slice(
        tuple([p.request_id for p in members if not p.decoding]),
        tuple([p.request_id for p in members if p.decoding]),
        fair=False,
    )


def _admitted(order: ServiceOrder) -> list[Prompt]:
    room, members = _Room(order.limits), list[Prompt]()
    stay = sorted(order.resident.values(), key=lambda p: p.arrival)
    others = filterfalse(attrgetter("resident"), order.prompts.values())  # no list of all
    for prompt in chain(stay, others):
        if not room.take(order.limits.reserved_blocks(prompt)):
            break
        members.append(prompt)
    return sorted(members, key=lambda p: p.arrival)


def fair(order: ServiceOrder) -> Slice:
    """The slice by section 7's algorithm."""
    limits, prefills, decodes = order.limits, order.prefills, order.decodes
    d = decode_slots(decodes, limits)
    room = _Room(limits)
    first, exhausted = _fill(room, prefills, 0, limits.batch_tokens - d)
    num_decodes = 0
    while num_decodes < d and room.take(decodes[num_decodes][2]):
        num_decodes += 1
    last = first
    if not exhausted:
        # The last prompt of p may need more tokens than p had left; d gives them first.
        lacking = sum([prompt.lacking_tokens for _, _, _, prompt in prefills[:first]])
        last, _ = _fill(room, prefills, first, limits.batch_tokens - num_decodes - lacking)
    return Slice(
        tuple([prompt.request_id for _, _, _, prompt in prefills[:last]]),
        tuple([prompt.request_id for _, _, _, prompt in decodes[:num_decodes]]),
        fair=True,
    )


def decode_slots(decodes: Sequence[Place], limits: Limits) -> int:
    """d's upper bound: how many of `decodes`, in this order, fit on the device by themselves."""
    room, count = _Room(limits), 0
    while count < min(len(decodes), limits.batch_tokens) and room.take(decodes[count][2]):
        count += 1
    return count


def _fill(room: _Room, prefills: Sequence[Place], at: int, tokens: int) -> tuple[int, bool]:
    """Takes room for `prefills`, from the one `at` this place on, until `tokens` are spent. Returns
    (the place of the first one that is left, whether memory ran out)."""
    while at < len(prefills) and tokens > 0:
        _, _, blocks, prompt = prefills[at]
        if not room.take(blocks):
            return at, True
        tokens -= prompt.lacking_tokens
        at += 1
    return at, False


class _Room:
    """Memory and seats of a device, taken by one prompt after another."""

    def __init__(self, limits: Limits) -> None:
        self._blocks, self._seats = limits.num_blocks, limits.max_prompts

    def take(self, blocks: int) -> bool:
        if blocks > self._blocks or not self._seats:
            return False
        self._blocks -= blocks
        self._seats -= 1
        return True


def iteration(
    chosen: Slice, prompts: dict[Hashable, Prompt], batch_tokens: int
) -> list[tuple[Hashable, int]]:
    """(request id, tokens) of one iteration of a slice: one token for each decode, the rest for
    prefills in order.

    A prompt whose prefill ended within the slice decodes. prompts: unfinished requests only.
    """
    decodes, prefills = list[Prompt](), list[Prompt]()
    for name in chosen.decodes + chosen.prefills:
        prompt = prompts.get(name)
        if prompt is not None:
            (decodes if prompt.decoding else prefills).append(prompt)
    batch: list[tuple[Hashable, int]] = []
    for prompt in decodes + prefills:
        tokens = min(prompt.lacking_tokens, batch_tokens)
        if tokens > 0:
            batch.append((prompt.request_id, tokens))
            batch_tokens -= tokens
    return batch


@dataclass(slots=True, frozen=True)
class Since:
    """What has happened since the last choice."""

    iterations: int
    completed: bool  # a request ended
    prefilled: bool  # a member's prefill ended, so p has tokens to spare
    arrived: bool  # a request arrived


def due(since: Since, chosen: Slice, order: ServiceOrder) -> bool:
    """Whether to choose anew at this iteration boundary: every k iterations, or when a request
    completes (section 7).

    Two more cases are ours. A prefill ended while other prompts wait for theirs; else p's tokens
    would be lost until the slice ends. Or a request arrived and all prompts fit, since FCFS admits
    it at once. Under contention an arrival waits for the end of the slice.
    """
    limits = order.limits
    if since.iterations >= limits.slice_iterations or since.completed or not chosen.members:
        return True
    if since.prefilled:
        members = set(chosen.members)
        return any(name not in members for name in order.prefilling)
    return since.arrived and not order.contended
