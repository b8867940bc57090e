"""Two constants that the paper calls uncritical, varied: MAX_GPSIZE (§4.2) and Q_MAX (§4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.aegaeon import of_seeds, publish, table
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS = ("aegaeon_table_settings_group", "aegaeon_table_settings_quota")
SETTINGS = {"max_group_size": "MAX_GPSIZE", "max_quota_s": "Q_MAX (s)"}
HEADINGS = ["setting", "value", "mean", "lowest", "highest"]


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = table(points)
    cells = [
        [title, f"{found[setting]:g}", *(f"{found[name]:.2%}" for name in ("mean", "min", "max"))]
        for setting, title in SETTINGS.items()
        for _, found in of_seeds(rows, setting, "token").iterrows()
    ]
    made, (axes,) = figure(1, 1, width=7.5, height=2.4)
    axes.axis("off")
    drawn = axes.table(
        cells, colLabels=HEADINGS, loc="center", cellLoc="center", edges="horizontal"
    )
    drawn.auto_set_column_width(range(len(HEADINGS)))
    axes.set_title("Tokens on time, 80 models at 0.1 requests/s, three inputs")
    stamp(made, points)
    return publish(made, rows, folder, Path(__file__).stem)
