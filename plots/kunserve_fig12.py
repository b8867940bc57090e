"""Fig. 12: end to end, 70B: TTFT and TBT by rate, violations, and violations by SLO scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import OVER_TIME, end_to_end, requests, violations
from plots.kunserve_fig10 import SLO, by_rate
from plots.panels import legend_above, lines
from plots.style import figure, log_scale

EXPERIMENTS = ("kunserve_fig12",)
SCALES = np.geomspace(0.2, 8.0, 25)  # of the SLO


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = end_to_end(points)
    top = rows[rows.rate == rows.rate.max()]
    paths = {point.config_hash(): point.path for point in points if point.path}
    return pd.concat([rows, *(by_scale(row, paths[row.config_hash]) for _, row in top.iterrows())])


def by_scale(row: pd.Series, path: Path) -> pd.DataFrame:
    """Share of the run's requests that violate SCALES times the SLO."""
    found = requests(path)
    made = [violations(found, k * row.slo_ttft_s, k * row.slo_tbt_s)["violating"] for k in SCALES]
    return pd.DataFrame({"scale": SCALES, "violating": made}).assign(
        part="scale", series=row.system, seed=row.seed, config_hash=row.config_hash
    )


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 3, width=9.5, height=5.4)
    by_rate(axes, rows[rows.part.isna()])
    lines(axes[5], rows, "scale", "violating", OVER_TIME, by="series", factor=100)
    axes[5].set(title="violated (%), highest rate", xlabel="scale of the SLO (x)")
    log_scale(axes[5], "x")
    axes[5].set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes[5].set_xticks([], minor=True)
    legend_above(made, axes, 4)
    memory = rows[rows.system == "llumnix_replication"].groupby("rate").wait_memory.mean()
    return made, (
        "Azure code arrivals. Mean and range of seeds. P99 where a run has requests enough. "
        f"{SLO} KV (168,000 tokens) is full for {', '.join(f'{100 * m:.0f}' for m in memory)} % "
        "of its waiting, by rate."
    )
