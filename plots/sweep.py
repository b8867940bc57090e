"""A number of a sweep's runs over a key: the mean over seeds, with its 95 % interval as a band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from pandas.api.types import is_numeric_dtype

from harness.errors import UsageError
from harness.records.interval import interval
from harness.records.run_folder import FinishedRun
from plots.style import PALETTE, figure, save, stamp_runs

RUN = "run"  # the column that names a run's folder


def draw(table: Path, x: str, y: str, by: str | None, out: Path | None = None) -> Path:
    """Draws the CSV that a sweep leaves; one line for each value of `by`. Returns the picture."""
    if not table.is_file():
        raise UsageError(f"there is no {table}: a sweep (-m) leaves results/runs/sweep-ID.csv")
    rows = pd.read_csv(table)
    columns = [str(name) for name in rows]
    for flag, key in (("--x", x), ("--y", y), ("--by", by)):
        if key is not None and key not in columns:
            near = [name for name in columns if name.split(".")[0] == key.split(".")[0]]
            raise UsageError(
                f"{flag} {key} is no column of {table}; valid: {', '.join(near or columns)}"
            )
    num_runs, rows = len(rows), rows[rows["verdict"] == "VALID"]
    if rows.empty:
        raise UsageError(f"no run of {table} is VALID")
    made, (axes,) = figure(1, 1, width=6, height=4)
    lines = rows.groupby(by) if by else [(None, rows)]
    for (label, of_line), color in zip(lines, PALETTE * 10, strict=False):
        _line(axes, of_line, x, y, label, color)
    axes.set(xlabel=x, ylabel=y)
    if by:
        axes.legend(title=by)
    seeds = rows.groupby([x] + ([by] if by else [])).size()
    said = f"mean and 95 % interval of {seeds.min()} to {seeds.max()} runs a point"
    runs = [FinishedRun.load(Path(folder)) for folder in rows[RUN]]
    left_out = num_runs - len(runs)
    invalid = f"; {left_out} INVALID ones left out" if left_out else ""
    stamp_runs(made, runs[:1], said, f"{len(runs)} runs of {table.name}{invalid}")
    return save(made, out or table.with_suffix(".png"))


def _line(axes: Axes, rows: pd.DataFrame, x: str, y: str, label: object, color: object) -> None:
    found = {at: interval(list(of_x)) for at, of_x in rows.dropna(subset=[y]).groupby(x)[y]}
    if not found:
        raise UsageError(f"no run has {y} where {label or 'the sweep'} is")
    values: list[Any] = list(found)
    means = np.array([each.mean for each in found.values()])
    halves = np.array([each.half or 0.0 for each in found.values()])
    axes.plot(values, means, marker="o", color=color, label=str(label))
    if halves.any() and is_numeric_dtype(rows[x]):
        axes.fill_between(values, means - halves, means + halves, color=color, alpha=0.2, lw=0)
    elif halves.any():
        axes.errorbar(values, means, halves, color=color, fmt="none", capsize=3)
