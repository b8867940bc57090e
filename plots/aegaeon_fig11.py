"""Fig. 11: SLO attainment by number of models (a, b) and by rate (c), and its sensitivity.

In (a) and (c) one of the inputs is the artifact's file and two are redrawn from it. (artifact) is
of Aegaeon as its code schedules. Models that MuxServe puts on one device do not compete for its
memory bandwidth; the table has (c) with them competing. Below each: ServerlessLLM by the rate at
which it loads checkpoints, one input, but for the curves above: ours at 50 GB/s, theirs at 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.capacity_search import Search
from harness.experiments.points import Point
from plots.aegaeon import END_TO_END, beside, curve, frame, publish, table
from plots.caption import stamp
from plots.style import PALETTE, figure

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
RATES = {  # GB/s of loading: ours, the artifact's
    16: ("serverlessllm_16", "serverlessllm_artifact"),
    32: ("serverlessllm_32", "serverlessllm_artifact_32"),
    50: ("serverlessllm", "serverlessllm_artifact_50"),
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = beside(table(points))
    made, axes = figure(2, 3, width=9, height=6.8)
    for i, (experiment, (title, x, label)) in enumerate(PANELS.items()):
        of_panel = rows[rows.experiment == experiment]
        frame(axes[i], title, label)
        for system in END_TO_END:
            curve(axes[i], of_panel[of_panel.system == system], x, "token", system)
        _loading(axes[i + 3], of_panel, x, label)
    for panel in (*axes[1:3], *axes[4:]):
        panel.set_ylabel("")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=3)
    axes[3].legend(
        loc="lower left", title="solid: ours, dotted: artifact",
        frameon=True, framealpha=0.9, edgecolor="none",
    )  # fmt: skip
    stamp(
        made, points, "Tokens in time (section 2.1), mean and range of three inputs of 120 s (a) "
        "or 60 s; vertical: 90 % is met. MuxServe ends where its optimiser finds no placement; "
        "(artifact): as Aegaeon's authors simulate it. Below: one input.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)


def _loading(panel: Axes, rows: pd.DataFrame, x: str, label: str) -> None:
    frame(panel, "ServerlessLLM by loading rate", label)
    for colour, (rate, systems) in zip(PALETTE[7:10], RATES.items(), strict=True):
        for system, style in zip(systems, ("-", ":"), strict=True):
            name = f"{rate} GB/s" if style == "-" else None
            of_system = rows[rows.system == system]
            line = {"color": colour, "ls": style, "marker": "s", "label": name}
            curve(panel, of_system, x, "token", system, **line)
