"""Fig. 1 from live runs: FCFS, CFS on DRAM and AQUA on one schedule whose rate doubles, on paced
workers of this machine; TTFT, TPOT and request completion time in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import by_order, lines, summed_up
from plots.aqua_burst import TITLES
from plots.caption import stamp
from plots.style import figure, log_scale

EXPERIMENTS = ("aqua_live_burst",)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = by_order(points, "live")
    made, axes = figure(1, len(TITLES), width=13, height=4.2)
    for panel, (column, title) in zip(axes, TITLES.items(), strict=True):
        lines(panel, rows, column, int(rows.seed.iloc[0]))
        panel.set(title=title, ylabel="seconds")
        log_scale(panel, "y")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3)
    stamp(
        made, points, "Random-weight model, BurstGPT's lengths, one run each. Grey: twice the rate "
        "(20 s; as many are redirected after it).",
    )  # fmt: skip
    table = pd.concat([summed_up(rows), rows.assign(row="request")], ignore_index=True)
    return publish(made, table, folder, Path(__file__).stem)
