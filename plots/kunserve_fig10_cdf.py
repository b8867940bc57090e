"""Beside Fig. 10: distributions of TTFT and TBT on each dataset at its highest rate."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import DATASETS, OVER_TIME, requests
from plots.panels import cdfs, legend_above, quantiles
from plots.runs import overrides
from plots.style import figure

EXPERIMENTS = tuple(f"kunserve_fig10_{dataset}" for dataset in DATASETS)
METRICS = {"ttft_s": "TTFT (s)", "tbt_s": "TBT (s)"}


def table(points: Sequence[Point]) -> pd.DataFrame:
    runs = pd.DataFrame([overrides(p) | {"experiment": p.experiment, "run": p} for p in points])
    top = runs[runs.rate == runs.groupby("experiment").rate.transform("max")]
    rows = []
    for (experiment, system), mine in top.groupby(["experiment", "system"]):
        found = pd.concat([requests(point.path) for point in mine.run])
        about = {
            "dataset": str(experiment).removeprefix("kunserve_fig10_"), "system": str(system),
            "config_hash": " ".join(point.config_hash() for point in mine.run),
        }  # fmt: skip
        rows += [quantiles(found[metric]).assign(metric=metric, **about) for metric in METRICS]
    return pd.concat(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(len(METRICS), len(DATASETS), width=10, height=5.6)
    places = [(metric, dataset) for metric in METRICS for dataset in DATASETS]
    for panel, (metric, dataset) in zip(axes, places, strict=True):
        cdfs(panel, rows[(rows.metric == metric) & (rows.dataset == dataset)], OVER_TIME)
        panel.set(title=DATASETS[dataset], xlabel=METRICS[metric], ylabel="share of requests")
    legend_above(made, axes, 4)
    return made, (
        "Azure code arrivals. The highest rate of Fig. 10, all seeds together. TBT: a request's "
        "mean. A curve that lies on another is dashed."
    )
