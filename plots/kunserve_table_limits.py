"""What binds at each load, in replication, and how the comparison depends on what the paper leaves
open: memory for KV, cap on sequences, prefill policy, launch cost."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import DATASETS, SYSTEMS, numbers, system, waits
from plots.panels import legend_above
from plots.style import PALETTE, figure

SENSITIVITY = "kunserve_table_limits"
EXPERIMENTS = (*(f"kunserve_fig10_{dataset}" for dataset in DATASETS), SENSITIVITY)
SETTINGS = {
    "as_is": "test bed as it is",
    "default_kv": "KV by vLLM's default",
    "seqs_1024": "1,024 sequences",
    "whole_prompts": "whole prompts",
    "cuda_graphs": "no launch cost",
    "spread_constants": "constants over\nall stages",
}
CAUSES = {  # (label, colour)
    "memory": ("KV full", PALETTE[3]),
    "sequences": ("256 seats taken", PALETTE[4]),
    "compute": ("neither: compute", "0.75"),
}
RATE = 2.8  # of SENSITIVITY
COMPARED = ("llumnix_replication", "kunserve")


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for point in points:
        dataset = point.experiment.removeprefix("kunserve_fig10_").replace(SENSITIVITY, "burstgpt")
        base = {"dataset": dataset, "setting": "as_is", "rate": RATE}
        if system(point) in COMPARED:
            rows.append(base | numbers(point) | waits(point))
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (left, right) = figure(1, 2, width=11, height=4.4)
    replication = rows[(rows.system == "llumnix_replication") & (rows.setting == "as_is")]
    means = replication.groupby(["dataset", "rate"], sort=False).mean(numeric_only=True)
    loads = means.reset_index()
    labels = [
        f"{DATASETS[row.dataset].split(' ')[0]} {row.requests_per_s:.0f}/s, load {row.load:.2f}"
        for _, row in loads.iterrows()
    ]
    begun = 0 * loads.load
    for cause, (label, colour) in CAUSES.items():
        share = 100 * loads[f"wait_{cause}"]
        left.barh(labels, share, left=begun, color=colour, label=label)
        begun = begun + share
    left.set(title="what requests wait for, by load", xlabel="share of waiting (%)", xlim=(0, 100))
    of_rate = rows[(rows.dataset == "burstgpt") & (rows.rate == RATE)]
    for k, name in enumerate(COMPARED):
        found = of_rate[of_rate.system == name].groupby("setting").ttft_p99_s
        shown = found.agg(["mean", "min", "max"]).reindex(list(SETTINGS))
        spread = [shown["mean"] - shown["min"], shown["max"] - shown["mean"]]
        places = [i + 0.4 * k - 0.2 for i in range(len(SETTINGS))]
        look = SYSTEMS[name]
        right.barh(places, shown["mean"], 0.36, xerr=spread, color=look.colour, label=look.label)
    right.set_yticks(range(len(SETTINGS)), list(SETTINGS.values()))
    right.set(title=f"BurstGPT, {of_rate.requests_per_s.mean():.0f}/s, by setting",
              xlabel="P99 TTFT (s)")  # fmt: skip
    for panel in (left, right):
        panel.invert_yaxis()
        panel.grid(False, axis="y")
    legend_above(made, [left, right], 5)
    return made, (
        "Azure code arrivals. Left: replication, time before first tokens; KV is full with 95 % of "
        "its blocks. Load: mean KV demand over memory. Right: mean and range of seeds."
    )
