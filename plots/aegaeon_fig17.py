"""Fig. 17: Aegaeon on a small node (left) and with models over four GPUs (right)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.aegaeon import curve, frame, publish, table
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig17_a10", "aegaeon_fig17_72b")
PANELS = {  # experiment: title, x, its label, SLO varied, {limit: name}
    "aegaeon_fig17_a10": (
        "4 x A10, 6B and 7B, 0.1 requests/s each", "num_models", "models", "tbt_s",
        {0.05: "strict (TBT 50 ms)", 0.1: "normal (TBT 100 ms)", 0.2: "loose (TBT 200 ms)"},
    ),
    "aegaeon_fig17_72b": (
        "8 x H800, four 72B models, TP 4", "rate_per_s", "requests/s of each model", "ttft_s",
        {5.0: "strict (TTFT 5 s)", 10.0: "normal (TTFT 10 s)", 20.0: "loose (TTFT 20 s)"},
    ),
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = table(points).drop(columns="time_s", errors="ignore")
    made, axes = figure(1, 2, width=9, height=3.8)
    for panel, (experiment, (title, x, label, slo, limits)) in zip(
        axes, PANELS.items(), strict=True
    ):
        frame(panel, title, label)
        of_panel = rows[rows.experiment == experiment]
        for (limit, name), colour, marker in zip(limits.items(), PALETTE, "v.^", strict=False):
            of_limit = of_panel[of_panel[slo] == limit]
            curve(panel, of_limit, x, "token", "aegaeon", color=colour, label=name, marker=marker)
        panel.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")
    stamp(
        made, points, "Token attainment (section 2.1): mean and range of three seeds. TTFT 5 s "
        "on the left, TBT 200 ms on the right, as the artifact plots them.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)
