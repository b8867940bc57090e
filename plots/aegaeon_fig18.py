"""Fig. 18: how busy GPUs are before and after pooling, over the hours of section 7.5.

Busy is a GPU while a batch runs on it. The paper's trace is not public, and its measure is not
defined: what can be compared is the direction. The rates are constant, so that stretches of ten
hours, a seed each and each from an empty system, stand end to end for the 70 hours; to claims each
is a sample.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import overrides, publish, spans
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig18_small", "aegaeon_fig18_large", "aegaeon_fig18_before")
BIN_S, STRETCH_S = 1200.0, 36_000.0
GPUS = {"aegaeon_fig18_small": 1, "aegaeon_fig18_large": 4, "aegaeon_fig18_before": 1}  # a model's


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.concat([_stretch(of_setup) for of_setup in _setups(points)], ignore_index=True)
    made, (axes,) = figure(1, 1, width=8, height=3.8)
    for colour, (label, shown) in zip(PALETTE, rows.groupby("label"), strict=False):
        mean, shown = shown.busy_share.mean(), shown.sort_values("hour")
        label = f"{label}: {100 * mean:.1f} %"
        axes.plot(shown.hour, 100 * shown.busy_share, color=colour, label=label)
    hours = len(rows.seed.unique()) * STRETCH_S / 3600
    axes.set(xlabel="time (h)", ylabel="busy (%)", ylim=(0, 104), xlim=(0, hours))
    made.legend(loc="outside upper center", ncols=3)
    stamp(
        made, points, f"Share of time that a batch runs, in bins of {BIN_S / 60:.0f} minutes. "
        f"{hours:.0f} hours, every ten with a seed of their own, of 28 models on one H20 and 19 on "
        "four. Not the authors' trace: the published mean rate, constant, Zipf popularity.",
    )  # fmt: skip
    return publish(made, rows.drop(columns="label"), folder, Path(__file__).stem)


def _setups(points: Sequence[Point]) -> list[list[Point]]:
    """The runs whose GPUs are shown as one line in one stretch: both deployments, or a model's."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        found.setdefault((point.seed, overrides(point).get("rate_per_s")), []).append(point)
    return list(found.values())


def _stretch(points: Sequence[Point]) -> pd.DataFrame:
    """A row per bin, the hour its middle; `token` is of the whole stretch."""
    rate, seed = overrides(points[0]).get("rate_per_s"), points[0].seed
    gpus = sum(point.manifest()["hardware"]["num_devices"] for point in points)
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
            "token": min(_tokens(point) for point in points),
        }
    )  # fmt: skip


def busy_s(point: Point) -> np.ndarray:
    """GPU seconds spent in batches, in each bin."""
    assert point.path is not None
    starts_s, ends_s = spans(point.path, "run")
    edges = np.arange(0.0, STRETCH_S + 1, BIN_S)
    overlap = np.minimum(ends_s[:, None], edges[1:]) - np.maximum(starts_s[:, None], edges[:-1])
    seconds: np.ndarray = np.clip(overlap, 0, None).sum(axis=0) * GPUS[point.experiment]
    return seconds


def _tokens(point: Point) -> float:
    assert point.path is not None
    summary = json.loads((point.path / "summary.json").read_text())
    return float(summary["slo_attainment"]["token"])
