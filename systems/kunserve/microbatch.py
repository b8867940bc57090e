"""Micro-batches of a pipeline (§4.2, §4.3): their requests, and what the next iteration computes.

New requests enter at the first stage, which forms micro-batches. As many are in flight as there are
stages. Here the batch limit of §4.3 is for one micro-batch. If it were for the group, a group of
two would run no more requests than one instance, and a drop would gain nothing. The EuroSys'26
paper forms batches by a cost model ("lookahead batch formulation"); that is not here. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(kw_only=True, slots=True)
class Limits:
    """Raises ValueError if one of the numbers is below 1."""

    max_num_seqs: int  # requests of a micro-batch
    max_num_batched_tokens: int  # of one of its iterations
    chunked: bool  # prompts in chunks beside decodes; else whole prompts, before decodes

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"system.{name}={getattr(self, name)} must be at least 1")


class Job(NamedTuple):
    """What one request needs next."""

    request_id: int
    lacking_tokens: int  # known and not computed; 1 if the request decodes
    decoding: bool = False


class Formed(NamedTuple):
    """One iteration of a micro-batch."""

    decodes: list[int]  # request ids
    chunks: list[tuple[int, int]]  # (request id, tokens)
    admitted: int  # how many waiting requests, from the first


def seat(sizes: Sequence[int], max_num_seqs: int) -> int | None:
    """The micro-batch that a new request joins: the smallest, if it has a seat; None: overflow
    (§4.3). sizes: requests of each micro-batch."""
    best = min(range(len(sizes)), key=lambda k: (sizes[k], k))
    return best if sizes[best] < max_num_seqs else None


def deal(context_tokens: Mapping[int, int], num: int) -> list[list[int]]:
    """Distributes ongoing requests over `num` micro-batches when a group forms.

    context_tokens: {request id: tokens}. Sizes differ by one at most. Contexts are evened out: in
    each round, the longest request goes to the micro-batch with the fewest tokens.
    """
    longest_first = sorted(context_tokens, key=lambda r: (-context_tokens[r], r))
    dealt: list[list[int]] = [[] for _ in range(num)]
    weight = [0] * num
    for first in range(0, len(longest_first), num):
        lightest = sorted(range(num), key=lambda k: (weight[k], k))
        for k, request in zip(lightest, longest_first[first : first + num], strict=False):
            dealt[k].append(request)
            weight[k] += context_tokens[request]
    return dealt


def form(
    running: Sequence[Job], waiting: Sequence[Job], limits: Limits, free_tokens: int
) -> Formed:
    """One micro-batch's next iteration.

    running: its requests. waiting: requests for any micro-batch, in order. free_tokens: tokens of
    KV that fit at every stage, beyond the next tokens of running requests. A waiting request joins
    if all of it fits, else it stops the queue (FCFS).
    """
    formed = Formed([], [], 0)
    budget = limits.max_num_batched_tokens
    prompts = [job for job in running if not job.decoding]
    if limits.chunked:
        decodes = [job.request_id for job in running if job.decoding][:budget]
        formed.decodes.extend(decodes)
        budget -= len(decodes)
    for job in prompts:
        tokens = _part(job, budget, limits, alone=not formed.chunks)
        if not tokens:
            break
        formed.chunks.append((job.request_id, tokens))
        budget -= tokens
    admitted = 0
    all_served = len(formed.chunks) == len(prompts)
    seats = max(0, limits.max_num_seqs - len(running)) if all_served else 0
    for job in waiting[:seats]:
        tokens = _part(job, budget, limits, alone=not formed.chunks)
        if not tokens or job.lacking_tokens > free_tokens:
            break
        formed.chunks.append((job.request_id, tokens))
        budget -= tokens
        free_tokens -= job.lacking_tokens
        admitted += 1
    if not limits.chunked and not formed.chunks:
        decodes = [job.request_id for job in running if job.decoding]
        formed.decodes.extend(decodes[: limits.max_num_batched_tokens])
    return formed._replace(admitted=admitted)


def _part(job: Job, budget: int, limits: Limits, *, alone: bool) -> int:
    """How many of the job's tokens the rest of the budget takes. A whole prompt above the budget is
    an iteration of its own."""
    if limits.chunked:
        return min(job.lacking_tokens, max(budget, 0))
    return job.lacking_tokens if job.lacking_tokens <= budget or alone else 0


def artifact_limits(limits: Limits, prompt_tokens: int, stages: int, chunk_tokens: int) -> Limits:
    """The limits of the published code after a drop.

    Prompts are cut into chunks of at most `chunk_tokens` (4,096), whatever was set before. Waiting
    prompts are spread over the stages' micro-batches, so that none is empty while another is full;
    this is our reading of its balanced micro-batches. One token for each seat is left for decodes.
    prompt_tokens: of all waiting prompts.
    """
    share = -(-prompt_tokens // stages)
    return Limits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=min(chunk_tokens, max(share, limits.max_num_seqs)),
        chunked=True,
    )
