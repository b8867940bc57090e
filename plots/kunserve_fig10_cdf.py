"""Beside Fig. 10: distributions of TTFT and TBT on each dataset at its highest rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import DATASETS, SUPPORT, SYSTEMS, caption, requests
from plots.style import cdf, figure

EXPERIMENTS = tuple(f"kunserve_fig10_{dataset}" for dataset in DATASETS)
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(2, len(DATASETS), width=10, height=5.6)
    rows, drawn = [], []
    for i, (dataset, title) in enumerate(DATASETS.items()):
        mine = [p for p in points if p.experiment == f"kunserve_fig10_{dataset}"]
        top = max(float(p.overrides["workload.scale.rate"]) for p in mine)
        for system, (label, colour, _, _) in SYSTEMS.items():
            of_system = [
                p
                for p in mine
                if p.overrides["experiment/kunserve/system@_global_"] == system
                and float(p.overrides["workload.scale.rate"]) == top
            ]
            if not of_system:
                continue
            drawn += of_system
            found = pd.concat([requests(p.path) for p in of_system if p.path is not None])
            for axis, metric in zip((axes[i], axes[i + 3]), ("ttft_s", "tbt_s"), strict=True):
                values = found[metric].dropna().to_numpy()
                cdf(axis, values, color=colour, label=label)
                row = {"dataset": dataset, "system": system, "metric": metric,
                       "config_hash": " ".join(p.config_hash() for p in of_system)}  # fmt: skip
                rows += [
                    row | {"quantile": q, "s": np.quantile(values, q), "requests": len(values)}
                    for q in QUANTILES
                    if len(values) >= SUPPORT["p999"] or q < 0.999
                ]
        axes[i].set(title=title, xlabel="TTFT (s)")
        axes[i + 3].set_xlabel("TBT (s)")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=4)
    caption(
        made,
        drawn,
        "The highest rate of Fig. 10, all seeds together. TBT: a request's mean. P99.9 "
        "is in the CSV where requests are enough.",
    )
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)
