"""Fig. 20: P95 TTFT and TBT from ServerlessLLM to BlitzScale, one technique after another.

That the bars are P95 is our reading: the text has no axis. Mutation comes with +Network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import MEASURES, SYSTEMS, WORKLOADS, measured, runs, saved, scale_ups
from plots.style import figure

EXPERIMENTS = ("blitzscale_fig17", "blitzscale_fig20")
STEPS = {
    "serverlessllm": "S-LLM",
    "network": "+Network",
    "multicast": "+Multicast",
    "blitzscale": "+ZigZag",
}
SHOWN = ("P95 TTFT", "P95 TBT")


def table(points: Sequence[Point]) -> pd.DataFrame:
    found = [run for run in runs(points) if run.system in STEPS]
    for run in found:
        if run.system == "blitzscale":  # what the last step adds
            run.mechanism = float(scale_ups(run.path).served.astype(bool).sum())
    rows = measured(found)
    for before, after in pairwise(STEPS):
        for name in MEASURES:
            rows += saved(found, name, before, MEASURES[name], after)
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 3, width=9, height=5)
    shown = [(name, workload) for name in SHOWN for workload in WORKLOADS]
    for panel, (name, workload) in zip(axes, shown, strict=True):
        of_panel = rows[(rows.quantity == name) & (rows.workload == workload)]
        each = of_panel.groupby("system").value.agg(["mean", "min", "max"]).loc[list(STEPS)]
        panel.bar(
            range(len(STEPS)), each["mean"], color=[SYSTEMS[system].colour for system in STEPS],
            yerr=np.array([each["mean"] - each["min"], each["max"] - each["mean"]]),
        )  # fmt: skip
        panel.set_xticks(range(len(STEPS)), list(STEPS.values()), fontsize=7)
        panel.grid(False, axis="x")
        if name == SHOWN[0]:
            panel.set_title(WORKLOADS[workload])
    for panel, name in zip(axes[::3], SHOWN, strict=True):
        panel.set_ylabel(f"{name} (s)")
    return made, "Mean and range of seeds. S-LLM: TTL 5 min."
