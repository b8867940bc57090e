"""Micro-batches of a pipeline (§4.2, §4.3): who is in which, and what its next iteration computes.

New requests enter at the first stage, which forms micro-batches; as many are in flight as there are
stages. The batch limit of §4.3 is one micro-batch's here: were it the group's, a group of two would
run no more requests than one instance, and a drop would gain nothing. The EuroSys'26 paper forms
batches by a cost model instead ("lookahead batch formulation"); that is not here. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(kw_only=True, slots=True)
class Limits:
    max_num_seqs: int  # requests of a micro-batch
    max_num_batched_tokens: int  # of one iteration of it
    chunked: bool  # prompts in chunks beside decodes; else whole prompts, before decodes

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"system.{name}={getattr(self, name)} must be at least 1")


class Job(NamedTuple):
    request_id: int
    lacking_tokens: int  # known and not computed; 1 of a request that decodes
    decoding: bool = False


class Formed(NamedTuple):
    decodes: list[int]
    chunks: list[tuple[int, int]]  # (request, tokens of it)
    admitted: int  # of the waiting ones, from the first


def seat(sizes: Sequence[int], max_num_seqs: int) -> int | None:
    """The micro-batch that a new request joins: the smallest with a seat; None: overflow (§4.3)."""
    best = min(range(len(sizes)), key=lambda k: (sizes[k], k))
    return best if sizes[best] < max_num_seqs else None


def deal(context_tokens: Mapping[int, int], num: int) -> list[list[int]]:
    """Ongoing requests into `num` micro-batches when a group forms: sizes differ by one at most,
    and contexts are as even as dealing the longest first to the lightest makes them."""
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
    """One micro-batch's next iteration. `running`: its requests; `waiting`: for any, in order.

    free_tokens: KV that every stage has room for, beyond what the running ones' next tokens need. A
    waiting request joins if it has room whole, and stops the queue if it has none (FCFS).
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
    """How many of the job's tokens go into what is left of the budget. A whole prompt above the
    budget goes alone."""
    if limits.chunked:
        return min(job.lacking_tokens, max(budget, 0))
    return job.lacking_tokens if job.lacking_tokens <= budget or alone else 0


def artifact_limits(limits: Limits, prompt_tokens: int, stages: int, chunk_tokens: int) -> Limits:
    """The published code after a drop: chunks of at most 4,096 tokens, whatever was set before, and
    prompts that wait spread over the stages' micro-batches, so that none of them is empty while
    another is full (our reading of its balanced micro-batches). A token for each seat is left, for
    decodes."""
    share = -(-prompt_tokens // stages)
    return Limits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=min(chunk_tokens, max(share, limits.max_num_seqs)),
        chunked=True,
    )
