"""Fig. 17: Aegaeon on a small node (left) and with models over four GPUs (right)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aegaeon import attainment
from plots.panels import Look
from plots.runs import table as of_runs
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig17_a10", "aegaeon_fig17_72b")
PANELS = {  # experiment: title, x, its label, SLO varied, {limit: name}
    "aegaeon_fig17_a10": (
        "(a) 4 x A10, 6B and 7B, 0.1 requests/s each", "num_models", "models", "tbt_s",
        {0.05: "strict\n(TBT 50 ms)", 0.1: "normal\n(TBT 100 ms)", 0.2: "loose\n(TBT 200 ms)"},
    ),
    "aegaeon_fig17_72b": (
        "(b) 8 x H800, four 72B models, TP 4", "rate_per_s", "requests/s of each model", "ttft_s",
        {5.0: "strict\n(TTFT 5 s)", 10.0: "normal\n(TTFT 10 s)", 20.0: "loose\n(TTFT 20 s)"},
    ),
}  # fmt: skip


def table(points: Sequence[Point]) -> pd.DataFrame:
    return of_runs(points)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=10.5, height=3.4)
    for panel, (experiment, (title, x, label, slo, limits)) in zip(
        axes, PANELS.items(), strict=True
    ):
        looks = {
            limit: Look(name, colour, marker)
            for (limit, name), colour, marker in zip(limits.items(), PALETTE, "vo^", strict=False)
        }
        shown = rows[rows.experiment == experiment]
        attainment(panel, shown, title, x, label, looks, by=slo)
        panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return made, (
        "Token attainment (section 2.1): mean and range of the seeds. Vertical: 90 % is met up to "
        "here. TTFT 5 s on the left, TBT 200 ms on the right, as the artifact plots them."
    )
