"""A board's silicon from per-layer kernel times alone, as LLMServingSim's profiler measured them.

The times are of vLLM's own kernels, of Llama-3.1-8B on one board, with no end-to-end run in them.
Products are read off at the profiled token counts; attention's few constants are fitted, decodes
and prompts each from the cells that have nothing else, and what decodes take beside prompts from
those that have both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from harness.calibrate import zoo
from harness.calibrate.profiles import Floats, read_table
from harness.calibrate.published import folder
from harness.cost.hardware import Silicon
from harness.cost.silicon import work

MODEL = "llama3.1-8b"
BOARDS = {"rtx4090": "RTX4090", "rtxpro6000": "RTXPRO6000"}
KNOTS = (
    1, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048,
)  # fmt: skip
PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
SMALL = ("layernorm", "layernorm", "rotary_emb", "act_fn")  # two norms a layer
LEAST_CONTEXT = 64  # tokens a decode reads in the cells that are fitted: serving has no fewer
MOST_CONTEXT = 4096  # beside prompts
US = 1e-6


@dataclass(frozen=True)
class KernelProfile:
    """One board's kernel times, in seconds."""

    dense: pd.DataFrame  # by tokens, a column for each kind of layer
    attention: pd.DataFrame  # n, before: of the chunk; decodes, context: tokens each reads; seconds
    sequence: pd.DataFrame  # by sequences: lm_head, sampler


def read(device: str, directory: Path | None = None) -> KernelProfile:
    at = folder(directory, "llmservingsim") / f"profiles_{BOARDS[device]}_Llama-3.1-8B_tp1"
    dense = read_table(at / "dense.csv", ["layer"], ["tokens", "time_us"])
    names = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    attention = read_table(at / "attention.csv", [], names)[names]
    attention.columns = pd.Index(["n", "before", "decodes", "context", "seconds"])
    sequence = read_table(at / "per_sequence.csv", ["layer"], ["sequences", "time_us"])
    return KernelProfile(
        dense.pivot_table(index="tokens", columns="layer", values="time_us") * US,
        attention.assign(seconds=attention.seconds * US),
        sequence.pivot_table(index="sequences", columns="layer", values="time_us") * US,
    )


def silicon(device: str, profile: KernelProfile) -> Silicon:
    model, hardware = zoo.model(MODEL), zoo.device(device)
    whole = work(model, hardware)
    layers = model.num_layers
    dense = profile.dense
    kernels = dense[[*PRODUCTS, *SMALL]].sum(axis=1)  # the norm counts twice
    small_s = float(sum(dense[name].iloc[0] for name in SMALL))  # what they take for one token
    knots = np.array([k for k in KNOTS if k in dense.index], float)
    roofline = np.maximum(float(whole.read_s), float(whole.token_s) * knots) / layers
    attend_s, kv_s = float(whole.attend_s) / layers, float(whole.kv_read_s) / layers
    alone, fixed_s = _decodes(profile.attention, kv_s)
    share, fewest = _prompts(profile.attention, attend_s, fixed_s)
    sampler = profile.sequence["sampler"]
    return Silicon(
        basis="kernel profiles",
        products_tokens=knots.tolist(),
        products_efficiency=(roofline / (kernels.loc[knots].to_numpy() - small_s)).tolist(),
        layer_s=small_s + fixed_s,
        attention_efficiency=share,
        fewest_queries=fewest,
        kv_efficiency=alone[0],
        mixed_kv_efficiency=_beside(profile.attention, attend_s, kv_s, fixed_s, share, fewest),
        sequence_layer_s=alone[1],
        sequence_s=float(sampler.loc[128] / 128),
    )


def _decodes(cells: pd.DataFrame, kv_s: float) -> tuple[tuple[float, float], float]:
    """(share of the bandwidth, seconds of each decode), seconds of the kernel itself."""
    rows = cells[(cells.n == 0) & (cells.before == 0) & (cells.context >= LEAST_CONTEXT)]
    read = (rows.decodes * rows.context).to_numpy(float)

    def seconds(x: Floats) -> Floats:
        found: Floats = x[2] + kv_s * read / x[0] + x[1] * rows.decodes.to_numpy(float)
        return found

    x = _fitted(seconds, rows.seconds.to_numpy(), (0.7, 1e-7, 8e-6))
    return (x[0], x[1]), x[2]


def _prompts(cells: pd.DataFrame, attend_s: float, fixed_s: float) -> tuple[float, float]:
    """Share of the FLOP/s, and the fewest queries that fill the board."""
    rows = cells[cells.decodes == 0]
    n, before = rows.n.to_numpy(float), rows.before.to_numpy(float)

    def seconds(x: Floats) -> Floats:
        pairs = np.maximum(n, x[1]) * before + n * (n + 1) / 2
        found: Floats = fixed_s + attend_s * pairs / x[0]
        return found

    x = _fitted(seconds, rows.seconds.to_numpy(), (0.4, 200.0))
    return x[0], x[1]


def _beside(
    cells: pd.DataFrame, attend_s: float, kv_s: float, fixed_s: float, share: float, fewest: float
) -> float:
    """The share of the bandwidth that decodes reach beside a prompt."""
    served = cells.context.between(LEAST_CONTEXT, MOST_CONTEXT) & (cells.before <= MOST_CONTEXT)
    rows = cells[(cells.n > 0) & (cells.decodes >= 8) & served]
    n, before = rows.n.to_numpy(float), rows.before.to_numpy(float)
    pairs = np.maximum(n, fewest) * before + n * (n + 1) / 2
    read = (rows.decodes * rows.context).to_numpy(float)

    def seconds(x: Floats) -> Floats:
        found: Floats = fixed_s + attend_s * pairs / share + kv_s * read / x[0]
        return found

    return _fitted(seconds, rows.seconds.to_numpy(), (0.6,))[0]


def _fitted(
    seconds: Callable[[Floats], Floats], measured: Floats, start: tuple[float, ...]
) -> tuple[float, ...]:
    """Constants with small logarithms of `seconds` over `measured`, robustly."""
    found = least_squares(
        lambda x: np.log(seconds(np.exp(x)) / measured), np.log(start), loss="soft_l1", f_scale=0.05
    )
    return tuple(float(value) for value in np.exp(found.x))
