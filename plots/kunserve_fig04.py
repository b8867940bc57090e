"""Fig. 4: KV swap and parameter swap by how much an instance swaps, beside recompute."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import LATENCIES, SYSTEMS, numbers
from plots.panels import legend_above, lines
from plots.runs import events
from plots.style import figure

EXPERIMENTS = ("kunserve_fig04", "kunserve_fig04_recompute")
SWAPS = {name: SYSTEMS[name] for name in ("vllm_kv_swap", "vllm_parameter_swap")}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([numbers(point) | {"swapped": swapped(point)} for point in points])
    return compared(rows.assign(hit=rows.swapped / rows.requests))


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, len(LATENCIES), width=11, height=3.2)
    for panel, (number, (title, factor)) in zip(axes, LATENCIES.items(), strict=True):
        lines(panel, rows, "gb", f"{number}_s", SWAPS, factor=factor)
        without = factor * rows[rows.system == "vllm"][f"{number}_s"].mean()
        panel.axhline(without, color="0.4", lw=0.9, ls="--", label=SYSTEMS["vllm"].label)
        panel.set(title=title, xlabel="GiB swapped by an instance", ylim=(0, None))
    legend_above(made, axes, 3)
    return made, "Azure code arrivals. Mean and range of seeds. Recompute swaps nothing."


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
    for number in LATENCIES:
        value = rows[f"{number}_s"]
        rows[f"{number}_over_recompute"] = value / rows.seed.map(without[f"{number}_s"])
        rows[f"{number}_over_kv"] = value / kv[f"{number}_s"].reindex(places).to_numpy()
    least = rows[rows.gb == rows.gb.min()].set_index(["system", "seed"]).tbt_p99_s
    own = pd.MultiIndex.from_frame(rows[["system", "seed"]])
    rows["tbt_p99_over_least"] = rows.tbt_p99_s / least.reindex(own).to_numpy()
    return rows
