"""Sizes and ratios that the paper names, by our models, profiles and workloads: arithmetic, and the
prompts of Figs. 8's and 13's schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.device.topology import cluster_topology
from harness.experiments.points import Point
from harness.location import dram, hbm
from harness.sim.fabric import alone
from plots.aegaeon import publish
from plots.aqua import overrides, requests
from plots.aqua_table_bandwidth import hardware, model
from plots.caption import stamp
from plots.style import figure
from systems.aqua.profiler.profile import context_bytes

EXPERIMENTS = ("aqua_fig08", "aqua_fig13")
CHUNK_TOKENS = 512  # sections 4.1 and 9.3
LONG_PROMPT_TOKENS = 8192  # section 9.1


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    table = pd.DataFrame([*arithmetic(), *medians(points)])
    made, (panel,) = figure(1, 1, width=9, height=2.0)
    panel.axis("off")
    text = [
        [quantity, f"{of.value.mean():,.4g}", of.unit.iloc[0]]
        for quantity, of in table.groupby("quantity", sort=False)
    ]
    cells = panel.table(text, colLabels=["quantity", "ours", "unit"], loc="center")
    cells.auto_set_font_size(False)
    cells.set_fontsize(8)
    cells.auto_set_column_width(range(3))
    cells.scale(1, 1.3)
    stamp(made, points, "Medians of the schedules' prompts, mean of three seeds; arXiv's scaled.")
    return publish(made, table, folder, Path(__file__).stem)


def arithmetic() -> list[dict[str, object]]:
    opt, llama = model("opt-30b"), model("llama3.1-70b")
    rows: list[dict[str, object]] = []
    for name in ("h100x8", "a100x2"):
        path = cluster_topology(hardware(name)).path
        ratio = alone(path(hbm(0, 0), hbm(0, 1))) / alone(path(hbm(0, 0), dram(0)))
        rows.append({"quantity": f"NVLink over PCIe, copies, {name}", "value": ratio, "unit": "x"})
    token_bytes = 2 * opt.num_layers * opt.num_kv_heads * opt.head_dim * 2
    swap_gb = context_bytes(1, LONG_PROMPT_TOKENS, token_bytes) / 1e9
    reduced_mb = CHUNK_TOKENS * llama.hidden_size * llama.dtype_bytes / 1e6
    rows += [
        {"quantity": "swap space of OPT-30B, 8,192 tokens", "value": swap_gb, "unit": "GB"},
        {"quantity": "all-reduce of Llama-3.1-70B", "value": reduced_mb, "unit": "MB"},
    ]
    return [row | {"seed": 0} for row in rows]


def medians(points: Sequence[Point]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, label in (("aqua_fig08", "ShareGPT"), ("aqua_fig13", "arXiv")):
        for point in points:
            if point.experiment == name and overrides(point)["system"] == "fcfs":
                median = requests(point).prompt_tokens.median()
                row = {"quantity": f"median prompt, {label}", "unit": "tokens", "value": median}
                rows.append(row | {"seed": point.seed})
    return rows
