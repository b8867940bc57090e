"""What Figs. 1, 8 and 13 share: two latencies of requests in order of arrival, in a burst."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import by_order, lines, summed_up
from plots.caption import stamp
from plots.style import figure, log_scale

TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "rct_s": "request completion time"}
SHOWN_SEED = 0


def burst(
    points: Sequence[Point], folder: Path, name: str, columns: tuple[str, str], note: str
) -> list[Path]:
    """Draws `columns`; the CSV has a row for each run and for each request of all seeds."""
    rows = by_order(points)
    made, axes = figure(1, 2, width=9, height=4.2)
    for panel, letter, column in zip(axes, "ab", columns, strict=True):
        lines(panel, rows, column, SHOWN_SEED)
        panel.set(title=f"({letter}) {TITLES[column]}", ylabel="seconds")
        log_scale(panel, "y")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=4)
    said = f"{note} Grey: the burst (a minute; as many are redirected after it). Seed 0."
    stamp(made, points, said)
    table = pd.concat([summed_up(rows), rows.assign(row="request")], ignore_index=True)
    return publish(made, table, folder, name)
