"""Fig. 5: why not always a pipeline: static pipelines of 2, 4 and 8 stages beside replication."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import caption, numbers
from plots.style import PALETTE, figure

EXPERIMENTS = ("kunserve_fig05",)
PANELS = {
    "P50 TTFT": "ttft_p50_s", "P99 TTFT": "ttft_p99_s", "P50 TBT": "tbt_p50_s",
    "P99 TBT": "tbt_p99_s",
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.DataFrame([numbers(point) for point in points]).set_index(["rate", "seed"])
    alone = rows[rows.stages == 1]
    for column in PANELS.values():
        ratio = rows[column] / alone[column].reindex(rows.index)
        rows[f"{column.removesuffix('_s')}_over_one"] = ratio
    rows = rows.reset_index()
    made, axes = figure(1, len(PANELS), width=11, height=3.2)
    for axis, (title, column) in zip(axes, PANELS.items(), strict=True):
        over = f"{column.removesuffix('_s')}_over_one"
        for k, (_, of_rate) in enumerate(rows.groupby("rate")):
            shown = of_rate.groupby("stages")[over].agg(["mean", "min", "max"])
            places = [i + 0.38 * k - 0.19 for i in range(len(shown))]
            spread = [shown["mean"] - shown["min"], shown["max"] - shown["mean"]]
            axis.bar(places, shown["mean"], 0.36, yerr=spread, color=PALETTE[k],
                     label=f"{of_rate.requests_per_s.mean():.0f} requests/s")  # fmt: skip
        axis.set_xticks(range(4), ["none", "2", "4", "8"])
        axis.set(title=f"{title} over replication's", xlabel="pipeline stages")
        axis.axhline(1, color="0.4", lw=0.8, ls="--")
    axes[0].legend(loc="upper left")
    caption(made, points, "Eight instances of 14B. Mean and range of seeds.")
    return publish(made, rows, folder, Path(__file__).stem)
