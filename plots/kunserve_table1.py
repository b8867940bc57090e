"""Table 1: parameters and GPU memory of an instance; the arithmetic of §2.2 and §4.2 on KV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from plots.conf import spec
from plots.style import text_table

EXPERIMENTS: tuple[str, ...] = ()
GIB = 2**30
GPU_GIB = 80
# Llama-3.1-405B, config.json; not in conf/model, for nothing serves it here.
LLAMA_405B: dict[str, Any] = {
    "name": "llama3.1-405b", "num_layers": 126, "hidden_size": 16384, "num_heads": 128,
    "intermediate_size": 53248,
}  # fmt: skip
ROWS = {  # GPUs, published size (GB) and share (%)
    "qwen2.5-14b": (1, 28.0, 34.4),
    "llama3.1-70b": (4, 131.0, 41.1),
    "qwen2.5-72b": (4, 136.0, 42.3),
    "llama3.2-90b": (4, 180.0, 56.3),
    "llama3.1-405b": (16, 756.0, 59.1),
}


def model(name: str) -> ModelSpec:
    if name == LLAMA_405B["name"]:
        return replace(spec("llama3.1-70b"), **LLAMA_405B)
    return spec(name)


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for name, (gpus, published_gb, published_share) in ROWS.items():
        size = model(name).weight_bytes / GIB
        share = 100 * size / (gpus * GPU_GIB)
        rows += [
            {"quantity": "size", "model": name, "value": size, "published": published_gb},
            {"quantity": "share", "model": name, "value": share, "published": published_share},
        ]
    rows += [{"quantity": key, "model": "qwen2.5-14b", "value": v} for key, v in kv().items()]
    return pd.DataFrame(rows).assign(inputs="ours")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    cells = []
    for name, (gpus, *_) in ROWS.items():
        size, share = rows[rows.model == name].iloc[:2].itertuples()
        cells.append(
            [name, str(gpus), f"{size.value:.1f} ({size.published:.0f})",
             f"{share.value:.1f} ({share.published:.1f})"]
        )  # fmt: skip
    head = ["model", "GPUs", "parameters, GiB", "share of memory, %"]
    return text_table(cells, head), "Ours, and in brackets the published numbers."


def kv() -> dict[str, float]:
    """Of Qwen-2.5-14B: KB a token (§2.2), GB of 64 K tokens, MB of 1 K tokens, and KB of q, k and v
    of one token over all layers (§4.2)."""
    found = spec("qwen2.5-14b")
    token = found.kv_bytes_per_token
    q = found.num_heads * found.head_dim
    qkv = (q + 2 * found.num_kv_heads * found.head_dim) * found.num_layers * found.dtype_bytes
    return {
        "KV of a token (KB)": token / 1024, "KV of 64 K tokens (GB)": 64 * 1024 * token / GIB,
        "KV of 1 K tokens (MB)": 1024 * token / 2**20, "q, k, v of a token (KB)": qkv / 1024,
    }  # fmt: skip
