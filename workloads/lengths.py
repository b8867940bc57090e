"""Prompt and output lengths: whose they are, how they are scaled, where they are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from harness.configuration.checks import at_least, one_of, positive
from harness.errors import UsageError
from harness.request import Segments
from harness.schedule import Synthetic
from workloads.trace import Ints, Trace, check_range, objects, rows_window, usable

ORDERS = ("file", "sample")
MAX_TOKENS = 10**18  # of a prompt or an output: the sum of two is still of 64 bits


@dataclass(kw_only=True, slots=True)
class LengthsConfig:
    order: str  # file: row by row; sample: (prompt, output) pairs drawn with replacement
    path: str | None  # take the lengths from this file, of any known format
    rows: list[int] | None  # take the lengths from these rows, [start, end)
    scale_prompt: float  # factor, applied before the cut
    scale_output: float
    max_prompt_tokens: int | None  # longer prompts are cut to this
    max_output_tokens: int | None

    def check(self) -> None:
        where = "workload.lengths"
        one_of(self.order, ORDERS, f"{where}.order")
        if self.rows is not None:
            check_range(self.rows, f"{where}.rows")
        positive(self, where, "scale_prompt", "scale_output")
        at_least(self, 1, where, "max_prompt_tokens", "max_output_tokens")


def replaced(trace: Trace, pool: Trace, config: LengthsConfig, rng: np.random.Generator) -> Trace:
    """`trace` with the lengths of rows of `pool`, one for each request."""
    if config.rows is not None:
        pool = rows_window(pool, config.rows, "workload.lengths.rows")
    pool = usable(pool)
    if len(pool) == 0:
        raise UsageError(f"{pool.provenance.source} has no row with usable lengths")
    if config.order == "file" and len(trace) > len(pool):
        raise UsageError(
            f"{len(trace)} requests need lengths, but there are {len(pool)}: "
            "use workload.lengths.order=sample or fewer requests"
        )
    sampled = config.order == "sample"
    rows = rng.integers(0, len(pool), len(trace)) if sampled else np.arange(len(trace))
    how = "drawn with replacement" if sampled else "in order"
    where = f" [{config.rows[0]}, {config.rows[1]})" if config.rows is not None else ""
    num_rows = f"{len(pool)} rows"
    whose = f" of {pool.provenance.origin}" if config.path is not None else ""
    if trace.prompts is not None and pool.prompts is None:
        raise UsageError(
            f"{trace.provenance.source} has prompts, but {pool.provenance.source} has lengths "
            "alone: leave out workload.lengths.path"
        )
    whole = pool.take(rows)
    changed = replace(
        trace,
        prompt_tokens=whole.prompt_tokens,
        output_tokens=whole.output_tokens,
        prompts=whole.prompts,
        shared=whole.shared,
    )
    step = f"lengths {how} from {num_rows}{where}{whose}"
    kind = Synthetic.LENGTHS_DRAWN if sampled else Synthetic.LENGTHS_MOVED
    if Synthetic.LENGTHS_PUBLISHED in pool.provenance.synthetic:
        kind = Synthetic.LENGTHS_PUBLISHED
    return changed.labelled(step, kind)


def fitted(trace: Trace, config: LengthsConfig) -> Trace:
    """Scaled, then cut; every length stays at least 1. A real prompt can be cut, not lengthened."""
    trace, prompt = _fit(
        trace, trace.prompt_tokens, "prompt", config.scale_prompt, config.max_prompt_tokens
    )
    trace, output = _fit(
        trace, trace.output_tokens, "output", config.scale_output, config.max_output_tokens
    )
    prompts = trace.prompts
    if prompts is not None:
        if config.scale_prompt > 1:
            raise UsageError(
                f"workload.lengths.scale_prompt={config.scale_prompt:g}: real prompts can be cut, "
                "not lengthened; give at most 1"
            )
        cut = zip(prompts, prompt.tolist(), strict=True)
        prompts = objects([each.first(num_tokens) for each, num_tokens in cut])
    shared = trace.shared
    if shared is not None and config.scale_prompt != 1:
        shared = objects([_scaled(segments, config.scale_prompt) for segments in shared])
    return replace(
        trace, prompt_tokens=prompt, output_tokens=output, prompts=prompts, shared=shared
    )


def _scaled(segments: Segments, factor: float) -> Segments:
    """Equal ones stay equal."""
    return tuple((stream, max(1, int(tokens * factor))) for stream, tokens in segments)


def _fit(
    trace: Trace, tokens: Ints, side: str, scale: float, limit: int | None
) -> tuple[Trace, Ints]:
    if scale != 1:
        longest = float(tokens.max()) * scale
        if longest > MAX_TOKENS:
            raise UsageError(
                f"workload.lengths.scale_{side}={scale:g} makes lengths of {longest:.3g} tokens; "
                f"at most {MAX_TOKENS:.3g}"
            )
        tokens = np.maximum(np.rint(tokens * scale), 1).astype(np.int64)
        trace = trace.labelled(f"{side} lengths x{scale:g}")
    if limit is not None and (tokens > limit).any():
        num_cut = int((tokens > limit).sum())
        tokens = np.minimum(tokens, limit)
        trace = trace.labelled(f"{side}s cut to {limit} tokens ({num_cut} requests)")
    return trace, tokens
