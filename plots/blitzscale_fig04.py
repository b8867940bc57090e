"""Fig. 4: instances that ServerlessLLM scales, and those that miss the host cache, with both TTLs.

On Fig. 17's runs of BurstGPT: one model, so that a host misses it once and then again where nothing
has used it for the TTL. The paper has many models on its hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import SYSTEMS, WORKLOADS, curve, loads, row, runs
from plots.panels import legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = ("serverlessllm", "serverlessllm_30s")
SHOWN_WORKLOAD, SHOWN_SEED = "burstgpt", 0


STEP_S = 2.0


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    used = [point for point in points if not set(SHOWN).isdisjoint(point.overrides.values())]
    for run in runs(used):
        found = loads(run.path)
        missed = found.source.str.startswith("ssd").to_numpy()
        rows.append(row(run, "share of loads that miss", float(missed.mean())))
        rows.append(row(run, "loads", float(len(found))))
        if (run.workload, run.seed) == (SHOWN_WORKLOAD, SHOWN_SEED):
            bins = np.arange(0, found.start_s.max() + STEP_S, STEP_S)
            for name, start_s in (("scaled", found.start_s), ("missed", found.start_s[missed])):
                counts, _ = np.histogram(start_s, bins)
                rows += curve(run, name, bins[:-1], counts.astype(float))
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=9, height=3.2)
    for panel, system in zip(axes, SHOWN, strict=True):
        for name, colour in (("scaled", "0.7"), ("missed", PALETTE[3])):
            shown = rows[(rows.system == system) & (rows.quantity == name)]
            panel.bar(shown.x, shown.value, STEP_S, align="edge", color=colour, label=name)
        panel.set(title=SYSTEMS[system].label, xlabel="seconds", ylabel="instances in 2 s")
    legend_above(made, axes, 2)
    shares = rows[rows.quantity == "share of loads that miss"].groupby("workload").value.mean()
    said = ", ".join(f"{title}: {shares[name]:.0%}" for name, title in WORKLOADS.items())
    return made, (
        f"{WORKLOADS[SHOWN_WORKLOAD]}, seed {SHOWN_SEED}. Of all loads with both TTLs miss, on "
        f"average: {said}."
    )
