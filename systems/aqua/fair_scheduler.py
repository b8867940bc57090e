"""AQUA's batch partitioning (section 7): which prompts share the device in the next time slice.

Pure functions over snapshots, the same for every engine. Of the batch's b tokens, d are slots for
decodes and p = b - d are tokens for prefills. d is as large as memory allows. p goes to the prompts
with the fewest prefill tokens computed. d goes to the decodes with the fewest tokens generated; the
rest of d goes to prefills again. Filling stops when memory is exhausted: a prompt without room ends
the filling of its kind. The other kind is still tried, or a long prompt would keep all decodes off
the device. Ties go to the earlier arrival (the paper names no rule).

The paper does not say the following. d's upper bound is the number of decodes, fewest generated
tokens first, that fit on the device by themselves. Memory counts as in `Limits.reserved_blocks`.
While every prompt fits, the order is that of arrival, since Fig. 8 finds CFS and FCFS identical
without contention. Tokens from a cached prefix do not count as service.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from systems.aqua.prompt import Limits, Prompt, Slice


def choose(prompts: Sequence[Prompt], limits: Limits, *, fcfs: bool = False) -> Slice:
    """The next slice. fcfs: paged-out KV is in DRAM, so no prompt is preempted for fairness. Each
    prompt fits on the device by itself, to its end."""
    if fcfs or not contended(prompts, limits):
        return in_order_of_arrival(prompts, limits)
    return fair(prompts, limits)


def contended(prompts: Sequence[Prompt], limits: Limits) -> bool:
    """Whether not all prompts fit on the device."""
    needed = sum(limits.reserved_blocks(prompt) for prompt in prompts)
    return needed > limits.num_blocks or len(prompts) > limits.max_prompts


def in_order_of_arrival(prompts: Sequence[Prompt], limits: Limits) -> Slice:
    """FCFS with admission control: prompts on the device stay; others join while they fit."""
    chosen = _Filling(limits)
    for prompt in sorted(prompts, key=lambda p: (not p.resident, p.arrival)):
        if not chosen.add(prompt):
            break
    members = sorted(chosen.members, key=lambda p: p.arrival)
    return Slice(
        tuple(p.request_id for p in members if not p.decoding),
        tuple(p.request_id for p in members if p.decoding),
        fair=False,
    )


def fair(prompts: Sequence[Prompt], limits: Limits) -> Slice:
    """The slice by section 7's algorithm."""
    prefills = sorted(
        (p for p in prompts if not p.decoding),
        key=lambda p: (max(0, p.computed_tokens - p.cached_tokens), p.arrival),
    )
    decodes = sorted(
        (p for p in prompts if p.decoding), key=lambda p: (p.generated_tokens, p.arrival)
    )
    d = decode_slots(decodes, limits)
    chosen = _Filling(limits)
    first, exhausted = _fill(chosen, prefills, limits.batch_tokens - d)
    num_decodes = 0
    while num_decodes < min(d, len(decodes)) and chosen.add(decodes[num_decodes]):
        num_decodes += 1
    more = 0
    if not exhausted:
        # The last prompt of p may need more tokens than p had left; d gives them first.
        lacking = sum(p.lacking_tokens for p in prefills[:first])
        left = limits.batch_tokens - num_decodes - lacking
        more, _ = _fill(chosen, prefills[first:], left)
    return Slice(
        tuple(p.request_id for p in prefills[: first + more]),
        tuple(p.request_id for p in decodes[:num_decodes]),
        fair=True,
    )


def decode_slots(decodes: Sequence[Prompt], limits: Limits) -> int:
    """d's upper bound: how many of `decodes`, in this order, fit on the device by themselves."""
    alone = _Filling(limits)
    count = 0
    while count < min(len(decodes), limits.batch_tokens) and alone.add(decodes[count]):
        count += 1
    return count


def _fill(chosen: _Filling, prefills: Sequence[Prompt], tokens: int) -> tuple[int, bool]:
    """Adds `prefills` until `tokens` are spent. Returns (how many, whether memory ran out)."""
    for count, prompt in enumerate(prefills):
        if tokens <= 0:
            return count, False
        if not chosen.add(prompt):
            return count, True
        tokens -= prompt.lacking_tokens
    return len(prefills), False


class _Filling:
    """Prompts that are added one by one while memory lasts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._free_blocks = limits.num_blocks
        self.members: list[Prompt] = []

    def add(self, prompt: Prompt) -> bool:
        blocks = self._limits.reserved_blocks(prompt)
        if blocks > self._free_blocks or len(self.members) == self._limits.max_prompts:
            return False
        self._free_blocks -= blocks
        self.members.append(prompt)
        return True


def iteration(
    chosen: Slice, prompts: Mapping[Hashable, Prompt], batch_tokens: int
) -> list[tuple[Hashable, int]]:
    """(request id, tokens) of one iteration of a slice: one token for each decode, the rest for
    prefills in order.

    A prompt whose prefill ended within the slice decodes. prompts: unfinished requests only.
    """
    members = [prompts[each] for each in chosen.decodes + chosen.prefills if each in prompts]
    batch: list[tuple[Hashable, int]] = []
    for prompt in sorted(members, key=lambda p: not p.decoding):
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


def due(since: Since, chosen: Slice, prompts: Sequence[Prompt], limits: Limits) -> bool:
    """Whether to choose anew at this iteration boundary: every k iterations, or when a request
    completes (section 7).

    Two more cases are ours. A prefill ended while other prompts wait for theirs; else p's tokens
    would be lost until the slice ends. Or a request arrived and all prompts fit, since FCFS admits
    it at once. Under contention an arrival waits for the end of the slice.
    """
    if since.iterations >= limits.slice_iterations or since.completed or not chosen.members:
        return True
    if since.prefilled:
        members = set(chosen.members)
        return any(not p.decoding and p.request_id not in members for p in prompts)
    return since.arrived and not contended(prompts, limits)
