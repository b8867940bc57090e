"""Figs. 6, 9 and 14 from live runs: two paced worker processes that drop and exchange once.

Above, one exchange each way as a Gantt chart, blocking and live; below, what it costs at two rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.caption import stamp
from plots.kunserve_fig09 import TITLES, gantt, lanes
from plots.kunserve_fig14 import COLOURS, measured
from plots.style import figure

EXPERIMENTS = ("kunserve_fig14_live",)
SHOWN_BYTES_PER_S = 2.35e6  # of the Gantt charts
VICTIMS_RUN_S = (0.3, 3.0)  # before and after the drop, those that are shown
PANELS = {
    "gap_mean_s": "mean decode time during the exchange (s)",
    "exchange_s": "time of the exchange (s)",
    "stall_s": "longest stall of a request (s)",
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.DataFrame([measured(point, float("nan")) for point in points])
    rows["mb_per_s"] = rows.pop("gbps") / 8 * 1e3
    blocking = rows[rows.exchange == "blocking"].set_index("mb_per_s")
    by_rate = rows.mb_per_s.map
    rows["gap_removed"] = 1 - rows.gap_mean_s / by_rate(blocking.gap_mean_s)
    rows["longer"] = rows.exchange_s / by_rate(blocking.exchange_s)
    made, axes = figure(2, 3, width=13, height=6.4)
    charts = dict(zip(TITLES, axes[:2], strict=True))
    for point in points:
        if float(point.overrides["hardware.nic_bytes_per_s"]) == SHOWN_BYTES_PER_S:
            exchange = point.overrides["system.exchange"]
            gantt(charts[exchange], lanes(point, VICTIMS_RUN_S))
            charts[exchange].set(title=TITLES[exchange], xlabel="seconds since the drop")
    axes[2].set_axis_off()
    for axis, (column, title) in zip(axes[3:], PANELS.items(), strict=True):
        for k, (exchange, colour) in enumerate(COLOURS.items()):
            shown = rows[rows.exchange == exchange].sort_values("mb_per_s")
            places = [i + 0.38 * k - 0.19 for i in range(len(shown))]
            axis.bar(places, shown[column], 0.36, color=colour, label=exchange)
        rates = sorted(rows.mb_per_s.unique())
        axis.set_xticks(range(len(rates)), [f"{rate:.3g}" for rate in rates])
        axis.set(title=title, xlabel="MB/s of the network")
    axes[3].legend()
    stamp(
        made, points, "Random-weight model on two paced workers, BurstGPT's lengths a quarter and "
        f"half as long. Charts at {SHOWN_BYTES_PER_S / 1e6:g} MB/s. Bars: a request's KV, first "
        "chunk to last block; ticks: tokens. One run each.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)
