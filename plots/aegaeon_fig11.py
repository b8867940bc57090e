"""Fig. 11: SLO attainment by number of models (a, b) and by rate (c), and its sensitivity.

Beside (a): ServerlessLLM by the rate at which it loads checkpoints, which decides much of the gap.
Beside (c), in the table alone: MuxServe whose models compete for a device's memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.figures import Point
from plots.aegaeon import END_TO_END, curve, frame, publish, stamp, table
from plots.style import PALETTE, figure

EXPERIMENTS = (
    "aegaeon_fig11a", "aegaeon_fig11b", "aegaeon_fig11c", "aegaeon_fig11_bandwidth",
    "aegaeon_fig11_contention",
)  # fmt: skip
PANELS = {
    "aegaeon_fig11a": ("(a) 0.1 requests/s a model", "num_models", "models"),
    "aegaeon_fig11b": ("(b) 0.5 requests/s a model", "num_models", "models"),
    "aegaeon_fig11c": ("(c) 40 models", "rate_per_s", "requests/s of each model"),
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = table(points)
    made, axes = figure(2, 2, width=9, height=6.4)
    for panel, (experiment, (title, x, label)) in zip(axes, PANELS.items(), strict=False):
        of_panel = rows[rows.experiment == experiment]
        frame(panel, title, label)
        for system in END_TO_END:
            of_system = of_panel[of_panel.system == system]
            curve(panel, of_system, x, "token", system)
    _bandwidth(axes[3], rows[rows.experiment == "aegaeon_fig11_bandwidth"])
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3)
    stamp(
        made, points, "Token attainment (section 2.1): mean and range of three inputs, in (a) "
        "and (c) the artifact's file and two redrawn from it. Vertical: 90 % is met up to here. "
        "MuxServe ends where its optimiser finds no placement. (artifact): as Aegaeon's authors "
        "simulated it. Models that MuxServe puts on one device do not compete for its memory "
        "bandwidth; the table has (c) with them competing.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)


def _bandwidth(panel: Axes, rows: pd.DataFrame) -> None:
    frame(panel, "ServerlessLLM at 0.1 requests/s, by loading rate", "models")
    for colour, (rate, of_rate) in zip(PALETTE[4:], rows.groupby("load_bytes_per_s"), strict=False):
        for system in ("serverlessllm", "serverlessllm_artifact"):
            name = f"{rate / 1e9:.0f} GB/s" if system == "serverlessllm" else None
            of_system = of_rate[of_rate.system == system]
            curve(panel, of_system, "num_models", "token", system, color=colour, label=name)
    panel.legend(
        loc="lower left", title="solid: ours, dotted: artifact",
        frameon=True, framealpha=0.9, edgecolor="none",
    )  # fmt: skip
