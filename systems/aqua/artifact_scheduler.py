"""variant=artifact: the scheduler of AQUA's public vLLM fork, from a description of what it does.

It has neither batch partitioning nor chunked prefill. Admission comes first. While a request waits
for its prefill, running requests are paged out until it fits, the earliest arrival first. Then
follows an iteration of whole prompts alone. Otherwise the requests with the fewest output tokens
get the device, every k = 5 iterations or when no request runs. Pure functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from systems.aqua.prompt import Limits, Prompt, Slice


def due(iterations: int, chosen: Slice, prompts: Sequence[Prompt], limits: Limits) -> bool:
    """Whether to choose anew: a request waits for admission, no request runs, or k iterations have
    passed since the last slice that was `fair`."""
    members = set(chosen.members)
    return (
        any(not prompt.decoding and prompt.request_id not in members for prompt in prompts)
        or iterations >= limits.slice_iterations
        or not any(prompt.request_id in members for prompt in prompts)
    )


def choose(prompts: Sequence[Prompt], limits: Limits) -> Slice:
    """The next slice. A slice of admissions is not `fair`, and does not restart the count of k.

    A prompt longer than `limits.batch_tokens` is prefilled alone. Each prompt fits on the device by
    itself, to its end.
    """
    waiting = sorted((p for p in prompts if not p.decoding), key=lambda p: p.arrival)
    running = sorted((p for p in prompts if p.decoding), key=lambda p: p.arrival)
    if waiting:
        return _admit(waiting, [p for p in running if p.resident], limits)
    return _least_served(running, limits)


def in_order_of_arrival(prompts: Sequence[Prompt], limits: Limits) -> Slice:
    """Not the public code's, which ends with an error where swap space is full: requests on the
    device stay, the earliest arrivals first, and others join while memory and tokens last."""
    free, tokens = limits.num_blocks, limits.batch_tokens
    waiting, running = list[Prompt](), list[Prompt]()
    for prompt in sorted(prompts, key=lambda p: (not p.resident, p.arrival)):
        free -= _reserved_blocks(limits, prompt)
        if free < 0 or len(waiting) + len(running) == limits.max_prompts:
            break
        if prompt.decoding:
            running.append(prompt)
            continue
        if waiting and prompt.lacking_tokens > tokens:
            break
        waiting.append(prompt)
        tokens -= prompt.lacking_tokens
    return Slice(
        tuple(p.request_id for p in waiting), tuple(p.request_id for p in running), fair=False
    )


def _admit(waiting: Sequence[Prompt], running: list[Prompt], limits: Limits) -> Slice:
    """Admits the first waiting request in any case, and those behind it while memory and tokens
    last."""
    free = limits.num_blocks - sum(_reserved_blocks(limits, p) for p in running)
    needed = _reserved_blocks(limits, waiting[0])
    while running and (needed > free or len(running) >= limits.max_prompts):
        free += _reserved_blocks(limits, running.pop(0))
    admitted: list[Prompt] = []
    tokens = limits.batch_tokens
    for prompt in waiting:
        needed = _reserved_blocks(limits, prompt)
        if len(admitted) + len(running) >= limits.max_prompts or needed > free:
            break
        if admitted and prompt.lacking_tokens > tokens:
            break
        admitted.append(prompt)
        free -= needed
        tokens -= prompt.lacking_tokens
    return Slice(
        tuple(p.request_id for p in admitted), tuple(p.request_id for p in running), fair=False
    )


def _least_served(running: Sequence[Prompt], limits: Limits) -> Slice:
    free = limits.num_blocks
    chosen: list[Hashable] = []
    for prompt in sorted(running, key=lambda p: (p.generated_tokens, p.arrival)):
        free -= _reserved_blocks(limits, prompt)
        if free < 0 or len(chosen) == limits.max_prompts:
            break
        chosen.append(prompt.request_id)
    return Slice((), tuple(chosen), fair=True)


def _reserved_blocks(limits: Limits, prompt: Prompt) -> int:
    """Like `Limits.reserved_blocks`, but a prompt is prefilled whole, even if longer than a
    batch."""
    grown = prompt.known_tokens + limits.slice_iterations - 1
    return limits.blocks(min(grown, prompt.final_tokens))


def iteration(chosen: Slice, prompts: Mapping[Hashable, Prompt]) -> list[tuple[Hashable, int]]:
    """(request id, tokens) of one iteration: whole prompts alone if there are any, else one token
    for each request."""
    members = [prompts[each] for each in chosen.members if each in prompts]
    batch = [p for p in members if not p.decoding] or members
    return [(p.request_id, p.lacking_tokens) for p in batch]
