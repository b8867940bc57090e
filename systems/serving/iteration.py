"""An iteration of continuous batching as vLLM schedules it: FCFS over paged KV, chunked prefill,
preemption by recompute.

The rules are those of vLLM's V1 scheduler (v0.32, vllm/v1/core/sched/scheduler.py). Each iteration
has one token budget. Running requests come first, in order. Waiting requests follow while budget,
`max_num_seqs` and free blocks last. With prefix caching the prefill of a waiting request begins
after the blocks that are already in memory (`harness.device.caching_pool`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from harness.configuration.checks import at_least
from harness.device.block_pool import BlockPool
from harness.request import Batch, Request


@dataclass(kw_only=True, slots=True)
class Limits:
    """What an iteration may have. Raises ValueError if one of the first two is below 1, or for
    `prompts_first` with chunked prefill."""

    max_num_seqs: int  # requests running at once
    max_num_batched_tokens: int  # tokens of one iteration
    enable_chunked_prefill: bool
    scheduler_reserve_full_isl: bool  # admit a prompt if all of it fits, not just its first chunk
    enable_prefix_caching: bool = False
    # Whole prompts run alone, before any decode: vLLM's default until V1 (0.6,
    # vllm/core/scheduler.py, `_schedule_default`). False: chunks beside decodes, as in V1.
    prompts_first: bool = False

    def __post_init__(self) -> None:
        at_least(self, 1, "system", "max_num_seqs", "max_num_batched_tokens")
        if self.prompts_first and self.enable_chunked_prefill:
            raise ValueError(
                "system.limits.prompts_first=true runs prompts whole: set "
                "system.limits.enable_chunked_prefill=false"
            )


def schedule_iteration(
    running: list[Request],
    waiting: deque[Request],
    kv: BlockPool,
    limits: Limits,
    evict: Callable[[Request], None],
) -> Batch:
    """The next iteration's batch; empty if nothing can run.

    Grows `kv` for everything in the batch and moves requests between `waiting` and `running`.
    If a running request needs a block and no block is free, the last request of `running` is
    preempted: `evict` frees its blocks, and it waits at the head of the queue to be recomputed.
    """
    batch = Batch()
    budget, block_tokens = limits.max_num_batched_tokens, kv.block_tokens
    if limits.prompts_first:
        _admit(running, waiting, kv, limits, batch, budget)
        if batch.chunks:
            return batch
    num_preempted = index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        # `known_tokens` and `decoding`, written out: simulations spend their time here.
        lacking = request.prompt_tokens + request.generated_tokens - request.computed_tokens
        tokens = lacking if lacking < budget else budget
        # One more token needs no block where the last one held has room, as most have.
        in_last_block = request.computed_tokens % block_tokens if tokens == 1 else 0
        while not in_last_block and not kv.grow(request, request.computed_tokens + tokens):
            victim = running.pop()
            evict(victim)
            waiting.appendleft(victim)
            num_preempted += 1
            if victim is request:
                break
        else:
            if lacking == 1 and request.generated_tokens:
                batch.decodes.append(request)
            else:
                batch.chunks.append((request, tokens))
                if limits.enable_prefix_caching:
                    kv.remember(request, request.computed_tokens + tokens)
            budget -= tokens
            index += 1
    if not num_preempted:
        _admit(running, waiting, kv, limits, batch, budget)
    return batch


def _admit(
    running: list[Request],
    waiting: deque[Request],
    kv: BlockPool,
    limits: Limits,
    batch: Batch,
    budget: int,
) -> None:
    """Admits from the head of `waiting`; the first that does not fit stops it (FCFS)."""
    while waiting and budget > 0 and len(running) < limits.max_num_seqs:
        request = waiting[0]
        known = request.known_tokens
        prefix = kv.cached_prefix(request) if limits.enable_prefix_caching else None
        cached = prefix.num_blocks * kv.block_tokens if prefix is not None else 0
        tokens = known - cached
        if tokens > budget and not limits.enable_chunked_prefill:
            return
        if limits.scheduler_reserve_full_isl:
            more = kv.blocks_for(known)
            if prefix is not None:
                more += prefix.num_waiting - prefix.num_blocks
            if more > kv.free_blocks:
                return
        tokens = min(tokens, budget)
        if prefix is None:
            if not kv.grow(request, tokens):
                return
        elif kv.admit(request, cached + tokens, prefix):
            request.computed_tokens = cached
            if request.cached_tokens is None:
                request.cached_tokens = cached
        else:
            return
        running.append(waiting.popleft())
        batch.chunks.append((request, tokens))
        budget -= tokens
