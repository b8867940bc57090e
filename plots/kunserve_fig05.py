"""Fig. 5: why not always a pipeline: static pipelines of 2, 4 and 8 stages beside replication."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import LATENCIES, numbers, over
from plots.panels import Look, bars, legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("kunserve_fig05",)


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([numbers(point) for point in points])
    return over(rows, rows.stages == 1, "one")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, len(LATENCIES), width=11, height=3.2)
    rates = rows.groupby("rate").requests_per_s.mean()
    looks = {
        rate: Look(f"{mean:.0f} requests/s", PALETTE[k])
        for k, (rate, mean) in enumerate(rates.items())
    }
    for panel, (number, (title, _)) in zip(axes, LATENCIES.items(), strict=True):
        bars(panel, rows, "stages", f"{number}_over_one", looks, by="rate")
        panel.set_xticks(range(4), ["none", "2", "4", "8"])
        panel.set(title=title.partition(" (")[0], xlabel="pipeline stages")
        panel.axhline(1, color="0.4", lw=0.8, ls="--")
    axes[0].set_ylabel("over replication's (x)")
    legend_above(made, axes, 2)
    return made, "Azure code arrivals. Eight instances of 14B. Mean and range of seeds."
