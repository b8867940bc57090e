"""Fig. 16: throughput-greedy plans (Algorithm 1), memory-greedy and exhaustive ones; and what plans
free.

Exhaustive: of all plans the one of least cost, by the profile. Which of all is the best by what its
run gives is not searched.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import LATENCIES, numbers, over
from plots.panels import Look, bars, legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("kunserve_fig16",)
PLANS = {
    "throughput": Look("throughput-greedy", PALETTE[0]),
    "memory": Look("memory-greedy", PALETTE[1]),
    "exhaustive": Look("exhaustive, by the profile", PALETTE[2]),
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([numbers(point) for point in points])
    return pd.concat([over(rows, rows.plan == "throughput", "throughput"), arithmetic()])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, len(LATENCIES), width=11, height=3.2)
    rates = rows.groupby("rate").requests_per_s.mean()
    for panel, (number, (title, factor)) in zip(axes, LATENCIES.items(), strict=True):
        bars(panel, rows, "rate", f"{number}_s", PLANS, by="plan", factor=factor)
        panel.set_xticks(range(len(rates)), [f"{rate:.0f}" for rate in rates])
        panel.set(title=title, xlabel="requests/s")
    legend_above(made, axes, 3)
    return made, "Azure code arrivals. Four instances of 14B. Mean and range of seeds."


def arithmetic() -> pd.DataFrame:
    """Replicas that eight instances free in four groups of two and in one of eight (§4.1)."""
    sizes = {"four groups": [2] * 4, "one group": [8]}
    freed = {plan: float(sum(size - 1 for size in groups)) for plan, groups in sizes.items()}
    rows = {"plan": list(freed), "freed_replicas": list(freed.values())}
    return pd.DataFrame(rows).assign(seed=0, inputs="paper")
