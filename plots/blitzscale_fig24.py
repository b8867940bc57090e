"""Fig. 24: PD colocation, Llama2-7B and BurstGPT, beside vLLM on all GPUs and on half.

The paper does not say on which hardware: cluster B here, 16 instances, at half of the rate that
vLLM serves on time on all of them. The right panel is ours: the GPUs that are held.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import (
    MEASURES,
    SYSTEMS,
    curve,
    held,
    held_over_time,
    latency_cdfs,
    measured,
    plot_cdfs,
    runs,
    saved,
)  # fmt: skip
from plots.panels import legend_above
from plots.style import figure

EXPERIMENTS = ("blitzscale_fig24",)
SHOWN = ("vllm_full", "vllm_half", "colocated")
GPUS = {"vllm_full": 16, "vllm_half": 8}
SHOWN_SEED = 0


def table(points: Sequence[Point]) -> pd.DataFrame:
    found = runs(points)
    rows = measured(found)
    for against in GPUS:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name], "colocated")
    for run in found:
        if (run.system, run.seed) == ("colocated", SHOWN_SEED):
            level = held_over_time(held(run.path), ["colocated", "loading"], 1.0)
            rows += curve(run, "GPUs held", *level)
    return pd.DataFrame([*rows, *latency_cdfs(found, SHOWN)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 3, width=11, height=3.4)
    plot_cdfs(axes[:2], rows, SHOWN)
    shown = rows[rows.quantity == "GPUs held"]
    axes[2].plot(shown.x, shown.value, color=SYSTEMS["colocated"].colour)
    for system, gpus in GPUS.items():
        axes[2].axhline(gpus, color=SYSTEMS[system].colour, ls=SYSTEMS[system].line)
    axes[2].set(title="GPUs held", xlabel="seconds", ylabel="GPUs", ylim=(0, 17))
    legend_above(made, axes, len(SHOWN))
    return made, (
        "BurstGPT 40 times as fast, Llama2-7B, cluster B. CDFs: all seeds; GPUs held: seed "
        f"{SHOWN_SEED}."
    )
