"""Table 1: shape and size of one token's KV cache, from conf/model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from plots.style import text_table

EXPERIMENTS = ()
PUBLISHED = {  # conf/model: (the paper's name, shape, KB)
    "qwen-7b": ("Qwen-7B", "(32, 2, 32, 128)", 512),
    "internlm2.5-7b": ("InternLM2.5-7B-chat", "(32, 2, 8, 128)", 128),
    "llama2-13b": ("LLaMA-13B", "(40, 2, 40, 128)", 800),
    "qwen-72b": ("Qwen-72B", "(80, 2, 64, 128)", 2560),
}
HEADINGS = ["model", "KV shape", "KV size (KB)", "published shape", "published (KB)"]


def spec(name: str) -> ModelSpec:
    return ModelSpec(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for name, (title, shape, size_kb) in PUBLISHED.items():
        model = spec(name)
        ours = f"({model.num_layers}, 2, {model.num_kv_heads}, {model.head_dim})"
        rows.append([title, ours, model.kv_bytes_per_token / 1024, shape, size_kb])
    names = ["model", "shape", "kb", "published_shape", "published_kb"]
    return pd.DataFrame(rows, columns=names).assign(inputs="ours")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows.drop(columns="inputs").astype(str)
    title = "KV cache of one token, 16 bit: (layers, K and V, heads, head size)"
    return text_table(shown.to_numpy().tolist(), HEADINGS, title), "Computed from conf/model."
