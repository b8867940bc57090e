"""The paper's numbers that need no run: Table 1, its arithmetic and its estimators, by our code.

The estimators are appendix A.2's equations, fitted to the public profiles; without those their rows
are missing. A (model, device, TP) pair has its own constants, by ordinary least squares: the
equations say nothing of their signs. The hidden and FFN sizes are the same in all cells of a pair,
so they go into the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pandas as pd
from hydra import compose

from harness.calibrate.profiles import Cells, Floats, read_profiles
from harness.configuration.config import settings
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Demand
from plots.aegaeon.motivation import RATE_PER_S, SERVICE_S, M, expected
from plots.conf import hardware, spec
from plots.figure import Points, Words, text
from systems.aegaeon.estimate import r_squared
from systems.aegaeon.quota import quotas
from systems.muxserve.system import MuxServe

PUBLISHED = {  # conf/model: (the paper's name, shape, KB)
    "qwen-7b": ("Qwen-7B", "(32, 2, 32, 128)", 512),
    "internlm2.5-7b": ("InternLM2.5-7B-chat", "(32, 2, 8, 128)", 128),
    "llama2-13b": ("LLaMA-13B", "(40, 2, 40, 128)", 800),
    "qwen-72b": ("Qwen-72B", "(80, 2, 64, 128)", 2560),
}


def kv_shapes(points: Points) -> pd.DataFrame:
    rows = []
    for name, (title, shape, size_kb) in PUBLISHED.items():
        model = spec(name)
        ours = f"({model.num_layers}, 2, {model.num_kv_heads}, {model.head_dim})"
        rows.append([title, ours, model.kv_bytes_per_token / 1024, shape, size_kb])
    names = ["model", "shape", "kb", "published_shape", "published_kb"]
    return pd.DataFrame(rows, columns=names).assign(inputs="ours")


@text(
    "aegaeon_table1",
    kv_shapes,
    head=["model", "KV shape", "KV size (KB)", "published shape", "published (KB)"],
    title="KV cache of one token, 16 bit: (layers, K and V, heads, head size)",
)
def table1(rows: pd.DataFrame) -> tuple[Words, str]:
    """Table 1: shape and size of one token's KV cache, from conf/model."""
    return rows.drop(columns="inputs").astype(str).to_numpy().tolist(), "Computed from conf/model."


PCIE4_BYTES_PER_S = 32e9  # §4.2
MODELS_14B = ("qwen1.5-14b", "qwen2.5-14b")


def arithmetic(points: Points) -> pd.DataFrame:
    active = expected(M, RATE_PER_S, SERVICE_S)
    worked = quotas([0.025] * 3, switching_s=3.0, tbt_s=0.1, max_quota_s=3.0, min_alpha=0.5)
    turn_s = worked.turns_s[0]
    cold_per_s = 167.6e6 * 0.0135 / (0.177 * 30_000) / 3600
    of_paper = {
        "active models of 100 (theorem 3.1)": active,
        "models to an active model": M / active,
        "requests/s of all models (M λ)": M * RATE_PER_S,
        "requests/s of a GPU kept for cold models (slides)": cold_per_s,
        "GPUs saved in production (1 - 213/1192)": 1 - 213 / 1192,
        "worked example: alpha": worked.alpha,
        "worked example: quota (s)": turn_s,
        "worked example: tokens in a turn": turn_s / 0.025,
        "worked example: round (s)": sum(worked.turns_s) + 3.0,
    }
    load_s = spec("llama2-13b").weight_bytes / PCIE4_BYTES_PER_S
    ours = {
        "14B models on an 80 GB GPU": models_14b(),
        "7B models that MuxServe's code places on 16 GPUs": models_7b(),
        "loading a 13B model over PCIe 4.0 (s)": load_s,
    }
    for name, (title, _, _) in PUBLISHED.items():
        ours[f"KV of a token of {title} (KB)"] = spec(name).kv_bytes_per_token / 1024
    rows = [(*each, "paper") for each in of_paper.items()]
    rows += [(*each, "ours") for each in (ours | estimators()).items()]
    return pd.DataFrame(rows, columns=["quantity", "value", "inputs"])


@text("aegaeon_table_numbers", arithmetic, head=["quantity", "value", "made of"])
def table_numbers(rows: pd.DataFrame) -> tuple[Words, str]:
    shown = rows.assign(value=rows.value.map("{:.4g}".format))
    fits = "R2: fitted to the public profiles, each pair of model and device alone."
    if not rows.quantity.str.startswith("R2").any():
        fits = "R2 of the estimators: left out, the profiles are missing (HARNESS_DATA_DIR)."
    said = f"Arithmetic on the paper's printed numbers, and on our descriptions of models. {fits}"
    return shown[["quantity", "value", "inputs"]].to_numpy().tolist(), said


def models_14b() -> int:
    """How many of them MuxServe's optimiser places on one A100 of 80 GB, of the two that we know
    the one that it takes more of."""
    gpu = hardware("a100x1")
    return max(_most(spec(name), _muxserve(), gpu) for name in MODELS_14B)


def models_7b() -> int:
    """How many LLaMA-7B MuxServe's code places on the 16 GPUs. Aegaeon's artifact names every model
    so where the mix does not fit."""
    return _most(spec("llama2-7b"), _muxserve("system.variant=artifact"), hardware("h800x16"))


def _muxserve(*overrides: str) -> MuxServe.Config:
    config = compose("config", overrides=["+system=muxserve", *overrides])
    return settings(plain(config.system), MuxServe, "system")


def _most(model: ModelSpec, system: MuxServe.Config, gpus: Hardware) -> int:
    return next(n for n in count(0) if not _placed(model, n + 1, system, gpus))


def _placed(model: ModelSpec, number: int, system: MuxServe.Config, gpus: Hardware) -> bool:
    models = {str(seed): replace(model, seed=seed) for seed in range(number)}
    try:
        MuxServe.place(system, models, gpus, Demand(dict.fromkeys(models, 0.1)))
    except UsageError:
        return False
    return True


def estimators() -> dict[str, float]:
    """R² of A.2's equations, and how many pairs of model and device they are fitted to; nothing
    where the profiles are missing."""
    try:
        pairs = read_profiles()
    except UsageError:
        return {}
    return {**lowest(pairs), "pairs with public profiles": len(pairs)}


SCOPES = {"every pair": (1, 2, 4), "TP 1": (1,)}


def lowest(pairs: Sequence[Cells]) -> dict[str, float]:
    """The lowest R² of each equation, over all pairs and over those of one GPU."""
    found = [(cells.tp, explained(cells)) for cells in pairs]
    return {
        f"R2 of {equation}, lowest of {scope}": min(
            fits[equation] for tp, fits in found if tp in degrees
        )
        for equation in found[0][1]
        for scope, degrees in SCOPES.items()
    }


def explained(cells: Cells) -> dict[str, float]:
    """R² of each equation over the cells of one pair."""
    one = np.ones_like(cells.batch)
    squares = cells.batch * cells.input_len**2  # t2
    printed = [one, cells.context_tokens]
    return {
        "eq. 5 (prefill)": _fitted([cells.tokens, squares, one], cells.prefill_s),
        "eq. 6 (decode)": _fitted(printed, cells.decode_s),
        "eq. 6 and C6 B (decode)": _fitted([*printed, cells.batch], cells.decode_s),
    }


def _fitted(terms: Sequence[Floats], times_s: Floats) -> float:
    scaled = np.array([term / term.max() for term in terms]).T  # they differ by orders of magnitude
    constants = np.linalg.lstsq(scaled, times_s, rcond=None)[0]
    return r_squared(times_s, scaled @ constants)
