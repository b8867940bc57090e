"""Fig. 10: end to end, 14B: TTFT and TBT by rate, violations of the SLO, on three datasets."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import DATASETS, LATENCIES, SYSTEMS, end_to_end
from plots.panels import legend_above, lines
from plots.style import figure, log_scale

EXPERIMENTS = tuple(f"kunserve_fig10_{dataset}" for dataset in DATASETS)
SLO = "SLO: 5 x P50 of replication at the lowest rate."


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = end_to_end(points)
    return rows.assign(dataset=rows.experiment.str.removeprefix("kunserve_fig10_"))


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    columns = len(LATENCIES) + 1
    made, axes = figure(len(DATASETS), columns, width=12, height=6.6)
    for i, (dataset, title) in enumerate(DATASETS.items()):
        mine = axes[columns * i : columns * (i + 1)]
        by_rate(mine, rows[rows.dataset == dataset])
        mine[0].set_ylabel(title, fontweight="bold", fontsize=8)
        for panel in mine if i else ():
            panel.set_title("")
        for panel in mine:
            panel.set_xlabel("requests/s, four instances" if i == len(DATASETS) - 1 else "")
    legend_above(made, axes, 4)
    return made, (
        "Azure code arrivals. Mean and range of seeds. TBT: a request's mean. P99 where a run has "
        f"requests enough. {SLO} KV: 33 GB an instance. AGIEval-CoT has two rates."
    )


def by_rate(axes: Sequence[Axes], rows: pd.DataFrame) -> None:
    """Of each of LATENCIES, and of violations of the SLO, one panel."""
    shown = {f"{number}_s": about for number, about in LATENCIES.items()}
    shown["violating"] = ("SLO violated (%)", 100.0)
    rates = rows.mean_rate
    margin = 0.1 * (rates.max() - rates.min())
    for panel, (column, (title, factor)) in zip(axes, shown.items(), strict=False):
        lines(panel, rows, "mean_rate", column, SYSTEMS, factor=factor)
        panel.set(title=title, xlabel="requests/s, four instances",
                  xlim=(rates.min() - margin, rates.max() + margin))  # fmt: skip
        if column.startswith("ttft"):
            log_scale(panel, "y")
        elif column.startswith("tbt"):
            panel.set_ylim(bottom=0)
