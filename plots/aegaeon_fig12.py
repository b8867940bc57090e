"""Fig. 12: SLO attainment with twice as long inputs (ix2) or outputs (ox2)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aegaeon import LOADING, SYSTEMS, attainment, beside
from plots.aegaeon_fig11 import AT_01, AT_05
from plots.panels import legend_above
from plots.runs import table as of_runs
from plots.style import figure

EXPERIMENTS = (
    "aegaeon_fig12_rps01", "aegaeon_fig12_rps05",
    "aegaeon_fig12_rps01_bandwidth", "aegaeon_fig12_rps05_bandwidth",
)  # fmt: skip
SEARCHES = {
    "aegaeon_fig12_rps01": AT_01,
    "aegaeon_fig12_rps01_bandwidth": AT_01,
    "aegaeon_fig12_rps05": AT_05,
    "aegaeon_fig12_rps05_bandwidth": AT_05,
}
PANELS = {
    ("aegaeon_fig12_rps01", "ix2"): "(a) 0.1 requests/s, inputs x 2",
    ("aegaeon_fig12_rps01", "ox2"): "(b) 0.1 requests/s, outputs x 2",
    ("aegaeon_fig12_rps05", "ix2"): "(c) 0.5 requests/s, inputs x 2",
    ("aegaeon_fig12_rps05", "ox2"): "(d) 0.5 requests/s, outputs x 2",
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    return beside(of_runs(points))


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9, height=6.2)
    for panel, ((experiment, lengths), title) in zip(axes, PANELS.items(), strict=True):
        shown = rows[(rows.experiment == experiment) & (rows.lengths == lengths)]
        attainment(panel, shown, title, "num_models", "models", SYSTEMS | LOADING)
    legend_above(made, axes, 3)
    return made, (
        "Token attainment (section 2.1): mean and range of the inputs. Vertical: 90 % is met up to "
        "here. (artifact): as Aegaeon's authors simulated it. Checkpoints load at 50 GB/s in ours "
        "and at 16 GB/s in theirs unless said; lines that say have one input."
    )
