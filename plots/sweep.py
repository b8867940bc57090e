"""A number of a sweep's runs over a key: the mean over seeds, with its 95 % interval as a band."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.errors import UsageError
from harness.records.interval import Interval, interval
from harness.records.run_folder import FinishedRun
from plots.style import PALETTE, figure, save, stamp_runs

RUN = "run"  # the column that names a run's folder


def draw(table: Path, x: str, y: str, by: str | None, out: Path | None = None) -> Path:
    """Of the CSV that a sweep leaves; one line for each value of `by`. Returns the picture."""
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
    valid = rows[rows["verdict"] == "VALID"]
    left_out = len(rows) - len(valid)
    if valid.empty:
        raise UsageError(f"no run of {table} is VALID")
    rows = valid
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
    invalid = f"; {left_out} INVALID ones left out" if left_out else ""
    stamp_runs(made, runs[:1], said, f"{len(runs)} runs of {table.name}{invalid}")
    return save(made, out or table.with_suffix(".png"))


def _line(axes: Axes, rows: pd.DataFrame, x: str, y: str, label: object, color: object) -> None:
    groups: list[tuple[Any, Interval]] = [
        (value, interval(list(of_x[y].dropna())))
        for value, of_x in rows.groupby(x)
        if of_x[y].notna().any()
    ]
    if not groups:
        raise UsageError(f"no run has {y} where {label or 'the sweep'} is")
    values = [value for value, _ in groups]
    means = [found.mean for _, found in groups]
    axes.plot(values, means, marker="o", color=color, label=str(label))
    halves = [found.half or 0.0 for _, found in groups]
    if any(halves) and all(isinstance(value, (int, float)) for value in values):
        low = [m - h for m, h in zip(means, halves, strict=True)]
        high = [m + h for m, h in zip(means, halves, strict=True)]
        axes.fill_between(values, low, high, color=color, alpha=0.2, linewidth=0)
    elif any(halves):
        axes.errorbar(values, means, halves, color=color, fmt="none", capsize=3)
