"""The paper's numbers that need no run: its own arithmetic and estimators, redone by our code.

The estimators are fitted to the public profiles; without those their rows are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pandas as pd
from hydra import compose
from matplotlib.figure import Figure

from harness.calibrate.profiles import read_profiles
from harness.configuration.config import settings, typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.errors import UsageError
from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from harness.placement import Demand
from plots.aegaeon_estimators import lowest
from plots.aegaeon_fig04 import RATE_PER_S, SERVICE_S, M, expected
from plots.aegaeon_table1 import PUBLISHED, spec
from plots.style import text_table
from systems.aegaeon.quota import quotas
from systems.muxserve.system import MuxServe

EXPERIMENTS = ()
PCIE4_BYTES_PER_S = 32e9  # §4.2
MODELS_14B = ("qwen1.5-14b", "qwen2.5-14b")


def table(points: Sequence[Point]) -> pd.DataFrame:
    active = expected(M, RATE_PER_S, SERVICE_S)
    worked = quotas([0.025] * 3, switching_s=3.0, tbt_s=0.1, max_quota_s=3.0, min_alpha=0.5)
    turn_s = worked.turns_s[0]
    of_paper = {
        "active models of 100 (theorem 3.1)": active,
        "models to an active model": M / active,
        "requests/s of all models (M λ)": M * RATE_PER_S,
        "requests/s of a GPU kept for cold models (slides)": (
            167.6e6 * 0.0135 / (0.177 * 30_000) / 3600
        ),
        "GPUs saved in production (1 - 213/1192)": 1 - 213 / 1192,
        "worked example: alpha": worked.alpha,
        "worked example: quota (s)": turn_s,
        "worked example: tokens in a turn": turn_s / 0.025,
        "worked example: round (s)": sum(worked.turns_s) + 3.0,
    }
    ours = {
        "14B models on an 80 GB GPU": models_14b(),
        "loading a 13B model over PCIe 4.0 (s)": (
            spec("llama2-13b").weight_bytes / PCIE4_BYTES_PER_S
        ),
        **{f"KV of a token of {title} (KB)": spec(name).kv_bytes_per_token / 1024
           for name, (title, _, _) in PUBLISHED.items()},
        **estimators(),
    }  # fmt: skip
    rows = [(*each, "paper") for each in of_paper.items()]
    rows += [(*each, "ours") for each in ours.items()]
    return pd.DataFrame(rows, columns=["quantity", "value", "inputs"])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows.assign(value=rows.value.map("{:.4g}".format))
    cells = shown[["quantity", "value", "inputs"]].to_numpy().tolist()
    made = text_table(cells, ["quantity", "value", "made of"])
    fitted = rows.quantity.str.startswith("R2").any()
    return made, (
        "Arithmetic on the paper's printed numbers, and on our descriptions of models. "
        + (
            "R2: fitted to the public profiles, each pair of model and device alone."
            if fitted
            else "R2 of the estimators: left out, the profiles are missing (HARNESS_DATA_DIR)."
        )
    )


def models_14b() -> int:
    """How many of them MuxServe's optimiser places on one A100 of 80 GB, of the two that we know
    the one that it takes more of."""
    config = compose("config", overrides=["+system=muxserve", "hardware=a100x1"])
    system = settings(plain(config.system), MuxServe, "system")
    hardware = typed(plain(config.hardware), Hardware, "hw")
    return max(
        next(n for n in count(0) if not _placed(spec(name), n + 1, system, hardware))
        for name in MODELS_14B
    )


def _placed(model: ModelSpec, number: int, system: MuxServe.Config, hardware: Hardware) -> bool:
    models = {str(seed): replace(model, seed=seed) for seed in range(number)}
    try:
        MuxServe.place(system, models, hardware, Demand(dict.fromkeys(models, 0.1)))
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
