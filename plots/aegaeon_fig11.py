"""Fig. 11: SLO attainment by number of models (a, b) and by rate (c), and its sensitivity.

In (a) and (c) one of the inputs is the artifact's file and the others are redrawn from it. Below
each: ServerlessLLM by the rate at which it loads checkpoints. Models that MuxServe puts on one
device do not compete for its memory bandwidth; the table has (c) with them competing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.capacity_search import Search
from harness.experiments.points import Point
from plots.aegaeon import LOADING, SYSTEMS, attainment, beside
from plots.panels import legend_above
from plots.runs import table as of_runs
from plots.style import figure

EXPERIMENTS = (
    "aegaeon_fig11a", "aegaeon_fig11b", "aegaeon_fig11c", "aegaeon_fig11c_beyond",
    "aegaeon_fig11a_bandwidth", "aegaeon_fig11b_bandwidth", "aegaeon_fig11c_bandwidth",
    "aegaeon_fig11_contention",
)  # fmt: skip
# Of the published files that of 40 models and 0.1 requests/s lasts half as long as the others.
MODELS, RATE = "workload.dataset.parameters.num_models", "workload.dataset.parameters.rate_per_s"
DRAWS = ("seed", "experiment/aegaeon/inputs@_global_")
AT_01 = Search(MODELS, tuple(n for n in range(16, 114, 2) if n != 40), DRAWS)
AT_05 = Search(MODELS, tuple(range(8, 80, 2)), DRAWS)
OF_40 = Search(RATE, tuple(n / 20 for n in range(1, 15)), DRAWS)
SEARCHES = {
    "aegaeon_fig11a": AT_01,
    "aegaeon_fig11a_bandwidth": AT_01,
    "aegaeon_fig11b": AT_05,
    "aegaeon_fig11b_bandwidth": AT_05,
    "aegaeon_fig11c": OF_40,
    "aegaeon_fig11c_bandwidth": OF_40,
}
PANELS = {
    "aegaeon_fig11a": ("(a) 0.1 requests/s a model", "num_models", "models"),
    "aegaeon_fig11b": ("(b) 0.5 requests/s a model", "num_models", "models"),
    "aegaeon_fig11c": ("(c) 40 models", "rate_per_s", "requests/s of each model"),
}
BY_LOADING = {
    name: look for name, look in (SYSTEMS | LOADING).items()
    if name.startswith("serverlessllm") and "plus" not in name
}  # fmt: skip


def table(points: Sequence[Point]) -> pd.DataFrame:
    return beside(of_runs(points))


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 3, width=9, height=6.4)
    for i, (experiment, (title, x, label)) in enumerate(PANELS.items()):
        shown = rows[rows.experiment == experiment]
        attainment(axes[i], shown, title, x, label)
        below = f"({'def'[i]}) ServerlessLLM by loading rate"
        attainment(axes[i + 3], shown, below, x, label, BY_LOADING)
    for panel in (*axes[1:3], *axes[4:]):
        panel.set_ylabel("")
    legend_above(made, axes, 3)
    return made, (
        "Tokens in time (section 2.1), mean and range of inputs of 120 s (a) or 60 s; vertical: "
        "90 % is met. MuxServe ends where its optimiser finds no placement; (artifact): as "
        "Aegaeon's authors simulate it, loading at 16 GB/s where ours does at 50, unless said."
    )
