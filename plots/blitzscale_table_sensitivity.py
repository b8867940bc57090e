"""How much comparisons with ServerlessLLM depend on its TTL, SSDs and hosts.

AzureCode, 8B, cluster B. Rows: what is changed against Fig. 17, one thing at a time. The paper's
code has logical hosts of four GPUs; a host is where a cached copy can be read. Which spare GPUs are
taken makes no difference there: each GPU of cluster B is a scale-up domain of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import MEASURES, SYSTEMS, loads, row, runs
from plots.style import text_table

CHANGES = {
    "blitzscale_fig17": "as in Fig. 17",
    "blitzscale_sensitivity_ssd": "SSD of 2 Gbps",
    "blitzscale_sensitivity_hosts": "hosts of 4 GPUs",
}
EXPERIMENTS = tuple(CHANGES)
SHOWN = ("blitzscale", "serverlessllm", "serverlessllm_30s")
HEADINGS = ["", "system", "mean TTFT (s)", "P99 TTFT (s)", "loads from SSD", "saved by BlitzScale"]
QUANTITIES = ("mean TTFT", "P99 TTFT", "share of loads from SSD")
AS_BEFORE = CHANGES[EXPERIMENTS[0]]


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for experiment, change in CHANGES.items():
        for run in runs([point for point in points if point.experiment == experiment]):
            if run.workload == "azure_code" and run.system in SHOWN:
                values = [MEASURES[name](run) for name in QUANTITIES[:2]]
                values.append(float(loads(run.path).source.str.startswith("ssd").mean()))
                about = {"change": change, "experiment": experiment}
                rows += [row(run, *each) | about for each in zip(QUANTITIES, values, strict=True)]
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    means = {
        change: of_change.pivot_table(index="system", columns="quantity", values="value")
        for change, of_change in rows.groupby("change")
    }
    cells = []
    for change in CHANGES.values():
        shown = means[change]
        ours_s = shown.combine_first(means[AS_BEFORE])["mean TTFT"][SHOWN[0]]
        for system in (each for each in SHOWN if each in shown.index):
            ttft_s, p99_s, missed = (shown[name][system] for name in QUANTITIES)
            saved = "" if system == SHOWN[0] else f"{1 - ours_s / ttft_s:.0%}"
            label = SYSTEMS[system].label
            cells.append([change, label, f"{ttft_s:.3f}", f"{p99_s:.3f}", f"{missed:.0%}", saved])
    return text_table(cells, HEADINGS), "AzureCode, 8B, cluster B; means of seeds."
