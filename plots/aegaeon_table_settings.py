"""Two constants that the paper calls uncritical, varied: MAX_GPSIZE (§4.2) and Q_MAX (§4.3)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.runs import table as of_runs
from plots.style import text_table

EXPERIMENTS = ("aegaeon_table_settings_group", "aegaeon_table_settings_quota")
SETTINGS = {"max_group_size": "MAX_GPSIZE", "max_quota_s": "Q_MAX (s)"}
HEADINGS = ["setting", "value", "mean", "lowest", "highest"]


def table(points: Sequence[Point]) -> pd.DataFrame:
    return of_runs(points)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    cells = [
        [title, f"{value:g}", *(f"{share:.2%}" for share in (of.mean(), of.min(), of.max()))]
        for setting, title in SETTINGS.items()
        for value, of in rows.groupby(setting).token
    ]
    title = "Tokens on time, 80 models at 0.1 requests/s"
    return text_table(cells, HEADINGS, title), "Mean and range of the inputs."
