"""Fig. 18: how busy GPUs are before and after pooling, of section 7.5's deployment in miniature.

Busy is a GPU while a batch runs on it. The paper's trace is not public, and its measure is not
defined: what can be compared is the direction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.figures import Point
from plots.aegaeon import events, overrides, publish, stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig18_small", "aegaeon_fig18_large", "aegaeon_fig18_before")
BIN_S, HORIZON_S = 60.0, 1200.0
GPUS = {"aegaeon_fig18_small": 1, "aegaeon_fig18_large": 4, "aegaeon_fig18_before": 1}  # a model's


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, (axes,) = figure(1, 1, width=8, height=3.8)
    minutes = np.arange(BIN_S, HORIZON_S + 1, BIN_S) / 60
    rows, lines = [], {}
    for seed in sorted({overrides(point)["seed"] for point in points}):
        of_seed = [point for point in points if overrides(point)["seed"] == seed]
        after = [point for point in of_seed if point.experiment != "aegaeon_fig18_before"]
        gpus = sum(point.manifest()["hardware"]["num_devices"] for point in after)
        share = sum(busy_s(point) for point in after) / gpus / BIN_S
        tokens = min(_tokens(point) for point in after)
        rows.append(_row("after", "all", seed, share, tokens))
        lines.setdefault(f"after: Aegaeon, {gpus} GPUs", []).append(share)
        for point in of_seed:
            if point not in after:
                rate = overrides(point)["rate_per_s"]
                load = "low" if rate < 0.1 else "high"
                share = busy_s(point) / BIN_S
                rows.append(_row("before", load, seed, share, _tokens(point)))
                lines.setdefault(f"before: one model, {rate} requests/s", []).append(share)
    for colour, (label, shares) in zip(PALETTE, sorted(lines.items()), strict=False):
        stacked = 100 * np.array(shares)
        axes.plot(minutes, stacked.mean(0), color=colour, label=label)
        axes.fill_between(minutes, stacked.min(0), stacked.max(0), color=colour, alpha=0.15)
    axes.set(xlabel="time (min)", ylabel="busy (%)", ylim=(0, 104), xlim=(0, HORIZON_S / 60))
    made.legend(loc="outside upper center", ncols=3)
    stamp(
        made, points, "Share of time that a batch runs, by minute: mean and range of three "
        "seeds. 20 minutes of 28 models on one H20 and 19 on four, at the published mean rate, "
        "Zipf popularity and ShareGPT lengths: not the authors' trace, which is not public.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def busy_s(point: Point) -> np.ndarray:
    """GPU seconds spent in batches, in each bin."""
    assert point.path is not None
    runs = events(point.path, "run")
    edges = np.arange(0.0, HORIZON_S + 1, BIN_S)
    starts, ends = runs.start_s.to_numpy()[:, None], runs.end_s.to_numpy()[:, None]
    overlap = np.minimum(ends, edges[1:]) - np.maximum(starts, edges[:-1])
    seconds: np.ndarray = np.clip(overlap, 0, None).sum(axis=0) * GPUS[point.experiment]
    return seconds


def _tokens(point: Point) -> float:
    assert point.path is not None
    summary = json.loads((point.path / "summary.json").read_text())
    return float(summary["slo_attainment"]["token"])


def _row(setup: str, load: str, seed: int, share: np.ndarray, tokens: float) -> dict[str, object]:
    return {
        "setup": setup, "load": load, "seed": seed, "busy_share": share.mean(), "token": tokens
    }  # fmt: skip
