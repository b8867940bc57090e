"""Table 1: shape and size of one token's KV cache, from conf/model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS: tuple[str, ...] = ()
PUBLISHED = {  # conf/model: (the paper's name, shape, KB)
    "qwen-7b": ("Qwen-7B", "(32, 2, 32, 128)", 512),
    "internlm2.5-7b": ("InternLM2.5-7B-chat", "(32, 2, 8, 128)", 128),
    "llama2-13b": ("LLaMA-13B", "(40, 2, 40, 128)", 800),
    "qwen-72b": ("Qwen-72B", "(80, 2, 64, 128)", 2560),
}
HEADINGS = ["model", "KV shape", "KV size (KB)", "published shape", "published (KB)"]


def spec(name: str) -> ModelSpec:
    return ModelSpec(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text()))


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    for name, (title, shape, size_kb) in PUBLISHED.items():
        model = spec(name)
        ours = f"({model.num_layers}, 2, {model.num_kv_heads}, {model.head_dim})"
        rows.append([title, ours, model.kv_bytes_per_token / 1024, shape, size_kb])
    table = pd.DataFrame(rows, columns=["model", "shape", "kb", "published_shape", "published_kb"])
    made, (axes,) = figure(1, 1, width=6.5, height=1.9)
    axes.axis("off")
    cells = [[str(f"{v:g}" if isinstance(v, (int, float)) else v) for v in row] for row in rows]
    drawn = axes.table(
        cells, colLabels=HEADINGS, loc="center", cellLoc="center", edges="horizontal"
    )
    drawn.auto_set_column_width(range(len(HEADINGS)))
    axes.set_title("KV cache of one token, 16 bit: (layers, K and V, heads, head size)")
    stamp(made, points, "Computed from conf/model; nothing was run.")
    return publish(made, table, folder, Path(__file__).stem)
