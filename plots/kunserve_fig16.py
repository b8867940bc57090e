"""Fig. 16: throughput-greedy plans (Algorithm 1), memory-greedy and exhaustive ones; and what plans
free.

Exhaustive: of all plans the one of least cost, by the profile. Which of all is the best by what its
run gives is not searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import caption, numbers
from plots.style import PALETTE, figure

EXPERIMENTS = ("kunserve_fig16",)
PLANS = {
    "throughput": ("throughput-greedy", PALETTE[0]),
    "memory": ("memory-greedy", PALETTE[1]),
    "exhaustive": ("exhaustive, by the profile", PALETTE[2]),
}
PANELS = {
    "P50 TTFT (s)": "ttft_p50_s", "P99 TTFT (s)": "ttft_p99_s", "P50 TBT (s)": "tbt_p50_s",
    "P99 TBT (s)": "tbt_p99_s",
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.DataFrame([numbers(point) for point in points]).set_index(["rate", "seed"])
    greedy = rows[rows.plan == "throughput"]
    for column in PANELS.values():
        ratio = rows[column] / greedy[column].reindex(rows.index)
        rows[f"{column.removesuffix('_s')}_over_throughput"] = ratio
    rows = rows.reset_index()
    made, axes = figure(1, len(PANELS), width=11, height=3.2)
    for axis, (title, column) in zip(axes, PANELS.items(), strict=True):
        for k, (plan, (label, colour)) in enumerate(PLANS.items()):
            shown = rows[rows.plan == plan].groupby("rate")[column].agg(["mean", "min", "max"])
            places = [i + 0.27 * k - 0.27 for i in range(len(shown))]
            spread = [shown["mean"] - shown["min"], shown["max"] - shown["mean"]]
            axis.bar(places, shown["mean"], 0.25, yerr=spread, color=colour, label=label)
        ticks = rows.groupby("rate").requests_per_s.mean()
        axis.set_xticks(range(len(ticks)), [f"{rate:.0f}" for rate in ticks])
        axis.set(title=title, xlabel="requests/s")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3)
    caption(made, points, "Mean and range of seeds.")
    return publish(made, pd.concat([rows, arithmetic()]), folder, Path(__file__).stem)


def arithmetic() -> pd.DataFrame:
    """Replicas that eight instances free in four groups of two and in one of eight (§4.1)."""
    sizes = {"four groups": [2] * 4, "one group": [8]}
    freed = {plan: float(sum(size - 1 for size in groups)) for plan, groups in sizes.items()}
    rows = {"plan": list(freed), "freed_replicas": list(freed.values())}
    return pd.DataFrame(rows).assign(seed=0)
