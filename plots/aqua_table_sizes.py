"""Sizes and ratios that the paper names, by our models, profiles and workloads: arithmetic, and the
prompts of Figs. 8's and 13's schedules."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.device.location import dram, hbm
from harness.device.topology import Topology
from harness.experiments.points import Point
from harness.sim.fabric import alone
from plots.aqua import overrides, requests
from plots.aqua_table_bandwidth import hardware, model
from plots.style import text_table
from systems.aqua.profiler.profile import context_bytes

EXPERIMENTS = ("aqua_fig08", "aqua_fig13")
CHUNK_TOKENS = 512  # sections 4.1 and 9.3
LONG_PROMPT_TOKENS = 8192  # section 9.1
RATES_OF = {"h100x8": "ours", "a100x2": "paper"}  # whose the copy rates of a hardware profile are


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.DataFrame([*arithmetic(), *medians(points)])


def arithmetic() -> list[dict[str, object]]:
    opt, llama = model("opt-30b"), model("llama3.1-70b")
    rows: list[dict[str, object]] = []
    for name, inputs in RATES_OF.items():
        path = Topology(hardware(name)).path
        ratio = alone(path(hbm(0, 0), hbm(0, 1))) / alone(path(hbm(0, 0), dram(0)))
        quantity = f"NVLink over PCIe, copies, {name}"
        rows.append({"quantity": quantity, "value": ratio, "unit": "x", "inputs": inputs})
    token_bytes = 2 * opt.num_layers * opt.num_kv_heads * opt.head_dim * 2
    swap_gb = context_bytes(1, LONG_PROMPT_TOKENS, token_bytes) / 1e9
    reduced_mb = CHUNK_TOKENS * llama.hidden_size * llama.dtype_bytes / 1e6
    rows += [
        {"quantity": "swap space of OPT-30B, 8,192 tokens", "value": swap_gb, "unit": "GB"},
        {"quantity": "all-reduce of Llama-3.1-70B", "value": reduced_mb, "unit": "MB"},
    ]
    return [{"inputs": "ours", "seed": 0} | row for row in rows]


def medians(points: Sequence[Point]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, label in (("aqua_fig08", "ShareGPT"), ("aqua_fig13", "arXiv")):
        for point in points:
            if point.experiment == name and overrides(point)["system"] == "fcfs":
                median = requests(point).prompt_tokens.median()
                row = {"quantity": f"median prompt, {label}", "unit": "tokens", "value": median}
                rows.append(row | {"seed": point.seed, "config_hash": point.config_hash()})
    return rows


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    cells = [
        [str(quantity), f"{of.value.mean():,.4g}", of.unit.iloc[0]]
        for quantity, of in rows.groupby("quantity", sort=False)
    ]
    made = text_table(cells, ["quantity", "ours", "unit"])
    return made, "Medians of the schedules' prompts, mean of the seeds; arXiv's scaled."
