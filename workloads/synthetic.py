"""A synthetic trace: what stands in for a dataset that cannot be had here.

One parametric form for all. Arrivals: a renewal process with gamma gaps of a given cv, run
through a repeating pattern of rates. Each slot of it may be busy in its first part only: the bursts
of a trace that falls silent again and again come from this, as no cv gives both them and its gaps.
Where the dataset's timestamps are ticks, the synthetic ones are too. Lengths: the inverse of a
distribution given by its quantiles, log-linear between them, prompt and output independent. Models:
Zipf. The constants stand in the dataset's YAML with their sources; tests/unit/workloads/fit.py
derives them. It does not know: correlations of lengths with each other, with time or with model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.configuration.checks import positive, require
from harness.schedule import Provenance, Synthetic
from workloads.arrivals import unit_process
from workloads.mix import draw_models, zipf_shares
from workloads.trace import Floats, Ints, Trace, stream

LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


@dataclass(kw_only=True, slots=True)
class SyntheticConfig:
    source: str  # where the constants come from
    num_requests_per_model: int  # size of a whole synthetic trace, as the dataset has rows
    rates_per_model_per_s: list[float] | None  # rates in consecutive slots; null: no arrivals
    slot_s: float
    busy_shares: list[float] | None  # first part of each slot, in which all of it comes; null: 1
    tick_s: float | None  # arrivals are moved back to multiples of it; null: they are not
    cv: float  # standard deviation / mean of the gaps between arrivals, at a constant rate
    num_models: int  # 1: the dataset names no models
    alpha: float  # Zipf exponent of the models' popularity; 0: uniform
    prompt_quantiles: list[float]  # tokens at LEVELS
    output_quantiles: list[float]
    prompt_mean_tokens: float | None  # scales the lengths to this mean; null: as they are
    output_mean_tokens: float | None

    def check(self) -> None:
        where, rates = "workload.synthetic", self.rates_per_model_per_s
        for key in ("prompt_quantiles", "output_quantiles"):
            values = getattr(self, key)
            require(
                len(values) == len(LEVELS) and values[0] >= 1 and (np.diff(values) >= 0).all(),
                f"{where}.{key} must be {len(LEVELS)} lengths from 1 up, not decreasing",
            )
        positive(self, where, "slot_s", "cv", "num_models", "num_requests_per_model", "tick_s")
        if rates is None:
            return
        key = f"{where}.rates_per_model_per_s"
        lowest = min(rates, default=0.0)
        require(lowest >= 0, f"{key}={lowest:g} must be at least 0 and finite")
        require(sum(rates) > 0, f"the sum of {key}={sum(rates):g} must be above 0 and finite")
        shares = [1.0] * len(rates) if self.busy_shares is None else self.busy_shares
        require(
            len(shares) == len(rates)
            and all(0 < s <= 1 or s == r == 0 for s, r in zip(shares, rates, strict=True)),
            f"{where}.busy_shares must be a share for each rate, from 0 to 1, and above 0 where "
            "the rate is",
        )


def trace(config: SyntheticConfig, name: str, num_requests: int, seed: int) -> Trace:
    """The first `num_requests` rows of the trace of dataset `name`; a prefix of any longer one."""
    prompts = stream(seed, "twin.prompts").random(num_requests)
    outputs = stream(seed, "twin.outputs").random(num_requests)
    model = arrival_s = None
    kinds = [Synthetic.LENGTHS_PUBLISHED]
    if config.num_models > 1:
        shares = zipf_shares(config.num_models, config.alpha)
        model = draw_models(num_requests, shares, stream(seed, "twin.models"))
        kinds.append(Synthetic.MODELS_DRAWN)
    if config.rates_per_model_per_s is not None:
        unit = unit_process(num_requests, config.cv, stream(seed, "twin.arrivals"))
        rates = np.array(config.rates_per_model_per_s) * config.num_models
        shares = np.array(config.busy_shares or [1.0] * len(rates))
        arrival_s = through_pattern(unit, rates, config.slot_s, shares)
        if config.tick_s is not None:
            arrival_s = np.floor(arrival_s / config.tick_s) * config.tick_s
        arrival_s -= arrival_s[0]
        kinds.append(Synthetic.ARRIVALS_DRAWN)
    drawn = Trace(
        arrival_s=arrival_s, model=model,
        prompt_tokens=lengths(prompts, config.prompt_quantiles, config.prompt_mean_tokens),
        output_tokens=lengths(outputs, config.output_quantiles, config.output_mean_tokens),
        provenance=Provenance(
            f"{name} synthetic", f"synthetic trace; constants: {config.source}", synthetic=[],
            licence="none: generated", source_sha256="", file="none: generated",
        ),
    )  # fmt: skip
    return drawn.labelled(f"synthetic trace of {name}", *kinds)


def through_pattern(
    unit: Floats, rates_per_s: Floats, slot_s: float, busy_shares: Floats
) -> Floats:
    """Times at which the expected count, under the repeating rates, reaches each of `unit`.

    All that a slot's rate makes expected of it is expected in the slot's first `busy_shares`.
    """
    start_s = np.arange(len(rates_per_s)) * slot_s
    end_s = start_s[-1] + slot_s
    edges_s = np.append(np.column_stack([start_s, start_s + busy_shares * slot_s]), end_s)
    counts = rates_per_s * slot_s
    expected = np.append(0.0, np.cumsum(np.column_stack([counts, np.zeros_like(counts)])))
    periods, rest = np.divmod(unit, expected[-1])
    times: Floats = periods * edges_s[-1] + np.interp(rest, expected, edges_s)
    return times


def lengths(uniform: Floats, quantiles: list[float], mean_tokens: float | None) -> Ints:
    tokens = np.exp(np.interp(uniform, LEVELS, np.log(quantiles)))
    if mean_tokens is not None:
        tokens *= mean_tokens / mean_of(quantiles)
    whole: Ints = np.maximum(np.rint(tokens), 1).astype(np.int64)
    return whole


def mean_of(quantiles: list[float]) -> float:
    """The mean of the log-linear distribution, in closed form; above the last level it is
    constant."""
    q, widths = np.array(quantiles), np.diff(LEVELS)
    ratio = np.log(q[1:] / q[:-1])
    flat = ratio == 0
    means = np.where(flat, q[:-1], np.diff(q) / np.where(flat, 1, ratio))
    return float((widths * means).sum() + (1 - LEVELS[-1]) * q[-1])
