"""Fig. 18: how busy GPUs are before and after pooling, over the hours of section 7.5.

Busy is a GPU while a batch runs on it. The paper's trace is not public, and its measure is not
defined: what can be compared is the direction. The rates are constant, so that stretches of ten
hours, a seed each and each from an empty system, stand end to end for the 70 hours; to claims each
is a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from harness.experiments.points import Point
from harness.files import read_json
from plots.panels import legend_above
from plots.runs import overrides, switches
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig18_small", "aegaeon_fig18_large", "aegaeon_fig18_before")
BIN_S, STRETCH_S = 1200.0, 36_000.0
GPUS = {"aegaeon_fig18_small": 1, "aegaeon_fig18_large": 4, "aegaeon_fig18_before": 1}  # a model's


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.concat([_stretch(of_setup) for of_setup in _setups(points)], ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (axes,) = figure(1, 1, width=8, height=3.8)
    for colour, (label, of_label) in zip(PALETTE, rows.groupby("label"), strict=False):
        shown = 100 * of_label.set_index("hour").busy_share.sort_index()
        axes.plot(shown.index, shown, color=colour, label=f"{label}: {shown.mean():.1f} %")
    hours = rows.seed.nunique() * STRETCH_S / 3600
    axes.set(xlabel="time (h)", ylabel="busy (%)", ylim=(0, 104), xlim=(0, hours))
    legend_above(made, [axes], 3)
    return made, (
        f"Share of time that a batch runs, in bins of {BIN_S / 60:.0f} minutes. {hours:.0f} hours, "
        "every ten with a seed of their own, of 28 models on one H20 and 19 on four. Not the "
        "authors' trace: the published mean rate, constant, Zipf popularity."
    )


def _setups(points: Sequence[Point]) -> list[list[Point]]:
    """The runs whose GPUs are shown as one line in one stretch: both deployments, or a model's."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        found.setdefault((point.seed, overrides(point).get("rate_per_s")), []).append(point)
    return list(found.values())


def _stretch(points: Sequence[Point]) -> pd.DataFrame:
    """A row per bin, the hour its middle; `token` and `mechanism` are of the whole stretch."""
    rate, seed = overrides(points[0]).get("rate_per_s"), points[0].seed
    gpus = sum(point.manifest()["hardware"]["num_devices"] for point in points)
    summaries = [read_json(point.path / "summary.json") for point in points if point.path]
    middles = np.arange(BIN_S / 2, STRETCH_S, BIN_S)
    if rate is None:
        setup, load, label = "after", "all", f"after, {gpus} GPUs"
    else:
        setup, load = "before", "low" if rate < 0.1 else "high"
        label = f"before, {rate} requests/s"
    return pd.DataFrame(
        {
            "setup": setup, "load": load, "seed": seed, "label": label,
            "hour": (seed * STRETCH_S + middles) / 3600,
            "busy_share": sum(busy_s(point) for point in points) / gpus / BIN_S,
            "token": min(summary["slo_attainment"]["token"] for summary in summaries),
            "mechanism": sum(map(switches, summaries)) if setup == "after" else np.nan,
            "config_hash": " ".join(point.config_hash() for point in points),
        }
    )  # fmt: skip


def busy_s(point: Point) -> np.ndarray:
    """GPU seconds spent in batches, in each bin."""
    assert point.path is not None
    batches = pq.read_table(
        point.path / "events.parquet", columns=["start_s", "end_s"], filters=[("kind", "=", "run")]
    )
    starts_s, ends_s = (batches[name].to_numpy() for name in ("start_s", "end_s"))
    edges = np.arange(0.0, STRETCH_S + 1, BIN_S)
    overlap = np.minimum(ends_s[:, None], edges[1:]) - np.maximum(starts_s[:, None], edges[:-1])
    seconds: np.ndarray = np.clip(overlap, 0, None).sum(axis=0) * GPUS[point.experiment]
    return seconds
