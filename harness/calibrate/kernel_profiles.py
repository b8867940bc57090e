"""A board's silicon from per-layer kernel times alone, as LLMServingSim's profiler measured them.

The times are of vLLM's own kernels, of Llama-3.1-8B on one board, with no end-to-end run in them.
Products are read off at the profiled token counts; attention's few constants are fitted, decodes
and prompts each from the cells that have nothing else, and what decodes take beside prompts from
those that have both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
KNOTS = (1, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 768, 1024, 1536, 2048)
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
    dense, cells = profile.dense, profile.attention
    kernels = dense[[*PRODUCTS, *SMALL]].sum(axis=1)  # the norm counts twice
    small_s = float(sum(dense[name].iloc[0] for name in SMALL))  # what they take for one token
    knots = np.array([k for k in KNOTS if k in dense.index], float)
    roofline = np.maximum(float(whole.read_s), float(whole.token_s) * knots) / layers
    attention = Attention(float(whole.attend_s) / layers, float(whole.kv_read_s) / layers)

    alone = (cells.n == 0) & (cells.before == 0) & (cells.context >= LEAST_CONTEXT)
    attention = attention.fitted(cells[alone], kv_share=0.7, decode_s=1e-7, fixed_s=8e-6)
    with_prompts = attention.fitted(cells[cells.decodes == 0], share=0.4, fewest=200.0)
    served = cells.context.between(LEAST_CONTEXT, MOST_CONTEXT) & (cells.before <= MOST_CONTEXT)
    mixed = cells[(cells.n > 0) & (cells.decodes >= 8) & served]
    beside = replace(with_prompts, decode_s=0.0).fitted(mixed, kv_share=0.6)
    return Silicon(
        basis="kernel profiles",
        products_tokens=knots.tolist(),
        products_efficiency=(roofline / (kernels.loc[knots].to_numpy() - small_s)).tolist(),
        layer_s=small_s + attention.fixed_s,
        attention_efficiency=with_prompts.share,
        fewest_queries=with_prompts.fewest,
        kv_efficiency=attention.kv_share,
        mixed_kv_efficiency=beside.kv_share,
        sequence_layer_s=attention.decode_s,
        sequence_s=float(profile.sequence["sampler"].loc[128] / 128),
    )


@dataclass(frozen=True)
class Attention:
    """What one layer's attention takes, in seconds."""

    attend_s: float  # a query and a key, at the datasheet's peak
    kv_s: float  # a token of context, at the datasheet's peak
    fixed_s: float = 0.0  # the kernel itself
    share: float = 1.0  # of the FLOP/s, in prompts
    fewest: float = 0.0  # queries that fill the board
    kv_share: float = 1.0  # of the bandwidth
    decode_s: float = 0.0  # each decode

    def seconds(self, cells: pd.DataFrame) -> Floats:
        n, before, decodes, context = (cells[name].to_numpy(float) for name in cells.columns[:4])
        pairs = np.maximum(n, self.fewest) * before + n * (n + 1) / 2
        read_s = self.kv_s * decodes * context / self.kv_share
        found: Floats = self.fixed_s + self.attend_s * pairs / self.share + read_s
        found += self.decode_s * decodes
        return found

    def fitted(self, cells: pd.DataFrame, **start: float) -> Attention:
        """This attention with constants, searched from `start`, that make the logarithms of
        `seconds` over the measured ones small, robustly."""

        def moved(x: Floats) -> Attention:
            return replace(self, **dict(zip(start, np.exp(x).tolist(), strict=True)))

        measured = cells.seconds.to_numpy()
        found = least_squares(
            lambda x: np.log(moved(x).seconds(cells) / measured),
            np.log(list(start.values())),
            loss="soft_l1",
            f_scale=0.05,
        )
        return moved(found.x)
