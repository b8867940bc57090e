"""Fig. 20: P95 TTFT and TBT from ServerlessLLM to BlitzScale, one technique after another.

That the bars are P95 is our reading: the text has no axis. Mutation comes with +Network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.blitzscale import MEASURES, SYSTEMS, WORKLOADS, measured, runs, saved
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS = ("blitzscale_fig17", "blitzscale_fig20")
STEPS = {
    "serverlessllm": "S-LLM",
    "network": "+Network",
    "multicast": "+Multicast",
    "blitzscale": "+ZigZag",
}
SHOWN = ("P95 TTFT", "P95 TBT")


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = [run for run in runs(points) if run.system in STEPS]
    rows = measured(found)
    names = list(STEPS)
    for before, after in pairwise(names):
        for name in MEASURES:
            rows += saved(found, name, before, MEASURES[name], after)
    shown = pd.DataFrame(rows)
    made, axes = figure(2, 3, width=9, height=5)
    for i, name in enumerate(SHOWN):
        for j, (workload, title) in enumerate(WORKLOADS.items()):
            panel = axes[3 * i + j]
            of_panel = shown[(shown.quantity == name) & (shown.workload == workload)]
            each = of_panel.groupby("system").value.agg(["mean", "min", "max"]).reindex(names)
            panel.bar(
                range(len(names)), each["mean"], color=[SYSTEMS[system][1] for system in names],
                yerr=np.array([each["mean"] - each["min"], each["max"] - each["mean"]]),
            )  # fmt: skip
            panel.set_xticks(range(len(names)), list(STEPS.values()), fontsize=7)
            panel.set(title=title if i == 0 else "", ylabel=f"{name} (s)" if j == 0 else "")
            panel.grid(False, axis="x")
    stamp(made, points, "Mean and range of three seeds. S-LLM: TTL 5 min.")
    return publish(made, shown, folder, Path(__file__).stem)
