"""How much comparisons with ServerlessLLM depend on its TTL, SSDs, hosts and the choice of GPUs.

AzureCode, 8B, cluster B. Rows: what is changed against Fig. 17, one thing at a time. The paper
leaves the choice of spare GPUs open, and its code has logical hosts of four GPUs; a host is where a
cached copy can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.blitzscale import SYSTEMS, row, runs
from plots.caption import stamp
from plots.style import figure

CHANGES = {
    "blitzscale_fig17": "as in Fig. 17",
    "blitzscale_sensitivity_ssd": "SSD of 2 Gbps",
    "blitzscale_sensitivity_hosts": "hosts of 4 GPUs",
    "blitzscale_sensitivity_spares": "GPUs spread",
}
EXPERIMENTS = tuple(CHANGES)
SHOWN = ("blitzscale", "serverlessllm", "serverlessllm_30s")
HEADINGS = [
    "",
    "system",
    "mean TTFT (s)",
    "P99 TTFT (s)",
    "loads from SSD",
    "TTFT saved by BlitzScale",
]


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows: list[dict[str, Any]] = []
    for experiment, change in CHANGES.items():
        of_change = [point for point in points if point.experiment == experiment]
        for run in runs(of_change):
            if run.workload == "azure_code" and run.system in SHOWN:
                ttft_s = run.latencies.ttft
                loads = events(run.path, "load").query("source != ''")
                values = {
                    "mean TTFT": float(np.nanmean(ttft_s)),
                    "P99 TTFT": float(np.nanpercentile(ttft_s, 99)),
                    "share of loads from SSD": float(loads.source.str.startswith("ssd").mean()),
                }
                about = {"change": change, "experiment": experiment}
                rows += [row(run, name, value) | about for name, value in values.items()]
    table = pd.DataFrame(rows)
    means = table.groupby(["change", "system", "quantity"]).value.mean()
    cells = []
    for change in CHANGES.values():
        for system in SHOWN:
            if (change, system, "mean TTFT") in means.index:
                mean_s, p99_s, missed = (
                    means[change, system, q] for q in dict.fromkeys(table.quantity)
                )
                at = (
                    change
                    if (change, SHOWN[0], "mean TTFT") in means.index
                    else CHANGES[EXPERIMENTS[0]]
                )
                saved = 1 - means[at, SHOWN[0], "mean TTFT"] / mean_s  # which no SSD slows
                shown = [f"{mean_s:.3f}", f"{p99_s:.3f}", f"{missed:.0%}"]
                shown.append("" if system == SHOWN[0] else f"{saved:.0%}")
                cells.append([change, SYSTEMS[system][0], *shown])
    made, (axes,) = figure(1, 1, width=9, height=3.4)
    axes.axis("off")
    drawn = axes.table(cells, colLabels=HEADINGS, loc="center", cellLoc="left", edges="horizontal")
    drawn.auto_set_column_width(list(range(len(HEADINGS))))
    stamp(made, points, "AzureCode, 8B, cluster B; means of seeds.")
    return publish(made, table, folder, Path(__file__).stem)
