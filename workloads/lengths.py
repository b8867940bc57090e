"""Prompt and output lengths: whose they are, how they are scaled, where they are cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.configuration.checks import at_least, one_of, positive, require
from harness.request import Segments
from harness.schedule import Synthetic
from workloads.trace import Ints, Trace, check_range, objects, rows_window, usable

ORDERS = ("file", "sample")
MAX_TOKENS = 10**18  # most tokens of a prompt or an output: the sum of two is still of 64 bits


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
        check_range(self.rows, f"{where}.rows")
        positive(self, where, "scale_prompt", "scale_output")
        at_least(self, 1, where, "max_prompt_tokens", "max_output_tokens")


def replaced(trace: Trace, pool: Trace, config: LengthsConfig, rng: np.random.Generator) -> Trace:
    """`trace` with the lengths of rows of `pool`, one for each request."""
    if config.rows is not None:
        pool = rows_window(pool, config.rows, "workload.lengths.rows")
    pool, sampled = usable(pool), config.order == "sample"
    require(len(pool), f"{pool.provenance.source} has no row with usable lengths")
    require(
        sampled or len(trace) <= len(pool),
        f"{len(trace)} requests need lengths, but there are {len(pool)}: "
        "use workload.lengths.order=sample or fewer requests",
    )
    rows = rng.integers(0, len(pool), len(trace)) if sampled else np.arange(len(trace))
    how = "drawn with replacement" if sampled else "in order"
    where = f" [{config.rows[0]}, {config.rows[1]})" if config.rows is not None else ""
    whose = f" of {pool.provenance.origin}" if config.path is not None else ""
    require(
        trace.prompts is None or pool.prompts is not None,
        f"{trace.provenance.source} has prompts, but {pool.provenance.source} has lengths alone: "
        "leave out workload.lengths.path",
    )
    whole = pool.take(rows)
    names = ("prompt_tokens", "output_tokens", "prompts", "shared")
    changed = replace(trace, **{name: getattr(whole, name) for name in names})
    step = f"lengths {how} from {len(pool)} rows{where}{whose}"
    kind = Synthetic.LENGTHS_DRAWN if sampled else Synthetic.LENGTHS_MOVED
    if Synthetic.LENGTHS_PUBLISHED in pool.provenance.synthetic:
        kind = Synthetic.LENGTHS_PUBLISHED
    return changed.labelled(step, kind)


def fitted(trace: Trace, config: LengthsConfig) -> Trace:
    """Scales the lengths, then cuts them; every length stays at least 1. A real prompt can be cut,
    not lengthened."""
    trace = _fit(trace, "prompt", config)
    trace = _fit(trace, "output", config)
    prompts = trace.prompts
    if prompts is not None:
        require(
            config.scale_prompt <= 1,
            f"workload.lengths.scale_prompt={config.scale_prompt:g}: real prompts can be cut, "
            "not lengthened; give at most 1",
        )
        cut = zip(prompts, trace.prompt_tokens.tolist(), strict=True)
        prompts = objects([each.first(num_tokens) for each, num_tokens in cut])
    shared = trace.shared
    if shared is not None and config.scale_prompt != 1:
        shared = objects([_scaled(segments, config.scale_prompt) for segments in shared])
    return replace(trace, prompts=prompts, shared=shared)


def _scaled(segments: Segments, factor: float) -> Segments:
    """Scales the lengths of segments; equal ones stay equal."""
    return tuple((stream, max(1, int(tokens * factor))) for stream, tokens in segments)


def _fit(trace: Trace, side: str, config: LengthsConfig) -> Trace:
    """The trace with the lengths of one side, prompt or output, scaled and cut."""
    tokens: Ints = getattr(trace, f"{side}_tokens")
    scale: float = getattr(config, f"scale_{side}")
    limit: int | None = getattr(config, f"max_{side}_tokens")
    if scale != 1:
        longest = float(tokens.max()) * scale
        require(
            longest <= MAX_TOKENS,
            f"workload.lengths.scale_{side}={scale:g} makes lengths of {longest:.3g} tokens; "
            f"at most {MAX_TOKENS:.3g}",
        )
        tokens = np.maximum(np.rint(tokens * scale), 1).astype(np.int64)
        trace = trace.labelled(f"{side} lengths x{scale:g}")
    if limit is not None and (tokens > limit).any():
        num_cut = int((tokens > limit).sum())
        tokens = np.minimum(tokens, limit)
        trace = trace.labelled(f"{side}s cut to {limit} tokens ({num_cut} requests)")
    changed: dict[str, Any] = {f"{side}_tokens": tokens}
    return replace(trace, **changed)
