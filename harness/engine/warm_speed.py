"""How fast a worker is now: a few iterations of each architecture before the first request comes.

A system's estimates come from a hardware profile (Aegaeon A.2), which another machine, or this one
on another day, may have been measured for: two to three times faster or slower is common. What the
same iterations take now, over what the profile says, scales the estimates of a live run on pooled
instances. Workers time themselves as they start, beside one another as they will serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING

from harness.cost.profile import TimeScale
from harness.engine.block_tables import FIRST_BLOCK
from harness.engine.work import BatchWork, Chunk
from harness.model_spec import ModelSpec
from harness.placement import Profile

if TYPE_CHECKING:
    from harness.engine.runner import Runner

PROMPT_TOKENS, NUM_REQUESTS, STEPS = 256, 4, 8
REPEATS, ENOUGH_S = 5, 1.0  # of a phase: five times, or as often as this takes


def timed(runner: Runner, spec: ModelSpec, num_blocks: int, block_tokens: int) -> dict[str, float]:
    """The time of one prompt of `prompt_tokens` (`prefill_s`), and of one step of NUM_REQUESTS such
    (`decode_s`). Overwrites KV, whose blocks are taken in turns where they are fewer than the
    prompt's; the numbers do not matter to the time."""
    prompt_tokens = min(PROMPT_TOKENS, spec.max_position - STEPS)
    ids = cycle(range(FIRST_BLOCK, FIRST_BLOCK + num_blocks))
    blocks = list(islice(ids, -(-(prompt_tokens + STEPS) // block_tokens)))
    prompt = BatchWork([Chunk(0, prompt_tokens, True)], [], [0] * prompt_tokens, [blocks])
    several = [blocks] * NUM_REQUESTS
    decodes = BatchWork([], [prompt_tokens] * NUM_REQUESTS, [0] * NUM_REQUESTS, several)
    return {
        "prompt_tokens": prompt_tokens,
        "prefill_s": _usual_s(lambda: runner.steps(prompt, 1)),
        "decode_s": _usual_s(lambda: runner.steps(decodes, STEPS)) / STEPS,
    }


def time_scale(
    speeds: Sequence[Mapping[str, Mapping[str, float]]],
    specs: Iterable[ModelSpec],
    profile: Profile,
) -> dict[str, TimeScale]:
    """Time scales by the name of the architecture, from the workers' mean; speeds: each worker's,
    by that name too."""
    found = {}
    for spec in {spec.name: spec for spec in specs}.values():
        seen = [speed[spec.name] for speed in speeds]
        tokens = int(seen[0]["prompt_tokens"])
        context_tokens = NUM_REQUESTS * (tokens + STEPS // 2)
        found[spec.name] = TimeScale(
            fmean(one["prefill_s"] for one in seen) / profile.prefill_s(spec, tokens),
            fmean(one["decode_s"] for one in seen)
            / profile.decode_step_s(spec, NUM_REQUESTS, context_tokens),
        )
    return found


def _usual_s(steps: Callable[[], Iterable[object]]) -> float:
    """The median time of running through `steps()`."""
    times_s: list[float] = []
    while len(times_s) < REPEATS and sum(times_s) < ENOUGH_S:
        begun_s = perf_counter()
        for _ in steps():
            pass
        times_s.append(perf_counter() - begun_s)
    return median(times_s)
