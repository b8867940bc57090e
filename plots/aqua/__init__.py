"""What AQUA's figures share: runs as tables, and how each system looks.

A row that says `inputs` comes from no run; "ours" is our constants and our cost model, "paper" the
paper's own numbers, "drawn" what was drawn at random. `mechanism` is what a run paged, in GB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.panels import Look
from plots.style import PALETTE

# By the option of experiment/aqua/system.
SYSTEMS = {
    "fcfs": Look("vLLM (FCFS)", PALETTE[3]),
    "cfs_dram": Look("vLLM + CFS, DRAM, block by block", PALETTE[1]),
    "cfs_dram_gathered": Look("vLLM + CFS, DRAM, gathered", PALETTE[0]),
    "aqua": Look("AQUA", PALETTE[2]),
}
STREAMING = {
    "flexgen": Look("FlexGen, DRAM", PALETTE[1]),
    "flexgen_aqua": Look("AQUA", PALETTE[2]),
}
LENDING = {
    "flexgen": Look("isolated", PALETTE[7]),
    "flexgen_aqua": Look("shares its memory", PALETTE[2]),
}
# Where a system's mechanism pages to, as the purposes of copies call it.
PAGES_TO = {
    "cfs_dram": "DRAM", "cfs_dram_gathered": "DRAM", "flexgen": "DRAM",
    "aqua": "lease", "flexgen_aqua": "lease",
}  # fmt: skip


def overrides(point: Point) -> dict[str, str]:
    """E.g. system: fcfs for experiment/aqua/system@_global_=fcfs."""
    return {
        re.split(r"[./]", key.partition("@")[0])[-1]: text for key, text in point.overrides.items()
    }


def config(point: Point) -> dict[str, Any]:
    assert point.path is not None
    found: dict[str, Any] = yaml.safe_load((point.path / "config.yaml").read_text())
    return found


def requests(point: Point, model: str | None = None) -> pd.DataFrame:
    """A row per request in order of arrival: TTFT, TPOT and RCT (request completion time) in s; nan
    where it did not complete. `model`: of one name alone."""
    assert point.path is not None
    columns = [
        "request_id", "model", "arrival_s", "status", "prompt_tokens", "output_tokens",
        "token_times_s",
    ]  # fmt: skip
    rows: pd.DataFrame = pq.read_table(point.path / "requests.parquet", columns=columns).to_pandas()
    if model is not None:
        rows = rows[rows.model == model]
    rows = rows.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    rows["order"] = np.arange(1, len(rows) + 1)
    first = np.array([t[0] if len(t) else np.nan for t in rows.token_times_s])
    last = np.array([t[-1] if len(t) else np.nan for t in rows.token_times_s])
    steps = np.array([max(len(t) - 1, 0) for t in rows.token_times_s], float)
    done = (rows.status == "completed").to_numpy()
    rows["ttft_s"] = first - rows.arrival_s
    rows["tpot_s"] = np.where(done & (steps > 0), (last - first) / np.maximum(steps, 1), np.nan)
    rows["rct_s"] = np.where(done, last - rows.arrival_s, np.nan)
    return rows


def events(point: Point, *kinds: str) -> pd.DataFrame:
    """The run's device events of `kinds`, their fields as columns."""
    assert point.path is not None
    found = pq.read_table(point.path / "events.parquet", filters=[("kind", "in", kinds)])
    rows = found.drop_columns(["fields"]).to_pandas()
    fields = pd.DataFrame([json.loads(text) for text in found["fields"].to_pylist()])
    both: pd.DataFrame = pd.concat([rows, fields], axis=1)
    return both


def summary(point: Point) -> dict[str, Any]:
    assert point.path is not None
    found: dict[str, Any] = json.loads((point.path / "summary.json").read_text())
    return found


def paged_gb(point: Point, system: str) -> float:
    """KV that left the device for where `system` pages to; nan: it pages nowhere."""
    if system not in PAGES_TO:
        return np.nan
    copies = events(point, "kv_move", "transfer")
    if copies.empty:
        return 0.0
    left = copies.purpose.str.contains(rf"\bout\b.*\b{PAGES_TO[system]}$")
    return float(copies.bytes[left].sum()) / 1e9


def most_paged_bytes(point: Point) -> float:
    """Of each device, outside of it at once."""
    moves = events(point, "kv_move")
    if moves.empty:
        return 0.0
    signs = {"out": 1, "in": -1}
    moves = moves[moves.purpose.str.startswith("page ")]
    change = moves.bytes * moves.purpose.str.split().str[1].map(signs)
    return float(change[moves.end_s.sort_values(kind="stable").index].cumsum().max())


def nested(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[Any, Look], *, by: str = "system"
) -> None:
    """Curves of single runs that coincide for long: each is narrower than those below it."""
    shown = [name for name in looks if (rows[by] == name).any()]
    for k, name in enumerate(shown):
        of_name, look = rows[rows[by] == name].dropna(subset=[y]), looks[name]
        width = len(shown) - k + 0.3
        axes.plot(of_name[x], of_name[y], color=look.colour, lw=width, label=look.label)


def bar_each(axes: Axes, rows: pd.DataFrame, column: str, looks: Mapping[str, Look]) -> None:
    """A bar for each system: the mean of `column`, in words too, and its range over seeds."""
    for k, (system, look) in enumerate(looks.items()):
        of_system = rows[rows.system == system][column]
        bar = axes.bar(k, of_system.mean(), color=look.colour, width=0.6)
        axes.bar_label(bar, fmt="%.1f", label_type="center")
        axes.plot([k, k], [of_system.min(), of_system.max()], color="k", marker="_")
    axes.set_xticks(range(len(looks)), [look.label for look in looks.values()])
    axes.grid(False, axis="x")
