"""Figs. 6, 9 and 14 from live runs: two paced worker processes that drop and exchange once.

Above, one exchange each way as a Gantt chart, blocking and live; below, what it costs at two rates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots import kunserve_fig09
from plots.kunserve_fig09 import gantt, lanes
from plots.kunserve_fig14 import LOOKS, TITLES, against_blocking, measured
from plots.panels import bars, legend_above
from plots.style import figure

EXPERIMENTS = ("kunserve_fig14_live",)
SHOWN = 2.35e6  # bytes/s of the network, of the Gantt charts
VICTIMS_RUN_S = (0.3, 3.0)  # before and after the drop, those that are shown


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = against_blocking(pd.DataFrame([measured(point, np.nan) for point in points]))
    shown = [p for p in points if float(p.overrides["hardware.nic_bytes_per_s"]) == SHOWN]
    rows = rows.assign(mb_per_s=rows.gbps / 8 * 1e3)
    return pd.concat([rows, *(lanes(point, VICTIMS_RUN_S) for point in shown)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, _ = figure(1, 1, width=10, height=8.4)
    made.clear()
    axes = made.subplot_mosaic([["blocking"] * 3, ["live"] * 3, [*TITLES]])
    for exchange, title in kunserve_fig09.TITLES.items():
        gantt(axes[exchange], rows[rows.series == exchange])
        axes[exchange].set(title=title, xlabel="seconds since the drop")
    for column, title in TITLES.items():
        bars(axes[column], rows, "mb_per_s", column, LOOKS, by="exchange")
        axes[column].set(title=title.replace(" during", "\nduring"), xlabel="MB/s of the network")
    legend_above(made, [axes[column] for column in TITLES], 2)
    return made, (
        "Random-weight model on two paced workers, BurstGPT's lengths a quarter and half as long. "
        f"Charts at {SHOWN / 1e6:g} MB/s. Bars: a request's KV, first chunk to last block; ticks: "
        "tokens. One run each."
    )
