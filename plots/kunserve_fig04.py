"""Fig. 4: KV swap and parameter swap by how much an instance swaps, beside recompute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.kunserve import SYSTEMS, caption, numbers
from plots.style import figure

EXPERIMENTS = ("kunserve_fig04", "kunserve_fig04_recompute")
SWAPS = ("vllm_kv_swap", "vllm_parameter_swap")
PANELS = {
    "P50 TTFT (s)": "ttft_p50_s", "P99 TTFT (s)": "ttft_p99_s", "P50 TBT (s)": "tbt_p50_s",
    "P99 TBT (s)": "tbt_p99_s",
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.DataFrame([numbers(p) | {"swapped": swapped(p)} for p in points])
    rows = compared(rows.assign(hit=rows.swapped / rows.requests))
    made, axes = figure(1, len(PANELS), width=11, height=3.2)
    for axis, (title, column) in zip(axes, PANELS.items(), strict=True):
        for system in SWAPS:
            label, colour, marker, _ = SYSTEMS[system]
            of_system = rows[rows.system == system].groupby("gb")[column]
            shown_at = of_system.agg(["mean", "min", "max"])
            axis.plot(shown_at["mean"], color=colour, marker=marker, label=label)
            axis.fill_between(shown_at.index, shown_at["min"], shown_at["max"], color=colour,
                              alpha=0.15)  # fmt: skip
        axis.axhline(rows[rows.system == "vllm"][column].mean(), color="0.4", lw=0.9, ls="--")
        axis.set(title=title, xlabel="GiB swapped by an instance", ylim=(0, None))
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=2)
    caption(made, points, "Mean and range of seeds. Dashed: vLLM with recompute.")
    return publish(made, rows, folder, Path(__file__).stem)


def swapped(point: Point) -> int:
    """Requests whose KV was swapped out."""
    assert point.path is not None
    found = events(point.path, "kv_move")
    if found.empty:
        return 0
    out = found[found.purpose == "swap out"].requests
    return len({request for requests in out for request in requests})


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Each number over that of recompute, and parameter swap's over KV swap's of as many bytes."""
    rows["gb"] = rows.bytes / 2**30
    without = rows[rows.system == "vllm"].set_index("seed")
    kv = rows[rows.system == "vllm_kv_swap"].set_index(["gb", "seed"])
    places = pd.MultiIndex.from_frame(rows[["gb", "seed"]])
    for column in PANELS.values():
        name = column.removesuffix("_s")
        rows[f"{name}_over_recompute"] = rows[column] / rows.seed.map(without[column])
        rows[f"{name}_over_kv"] = rows[column] / kv[column].reindex(places).to_numpy()
    least = rows[rows.gb == rows.gb.min()].set_index(["system", "seed"]).tbt_p99_s
    own = pd.MultiIndex.from_frame(rows[["system", "seed"]])
    rows["tbt_p99_over_least"] = rows.tbt_p99_s / least.reindex(own).to_numpy()
    return rows
