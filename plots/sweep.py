"""A number of a sweep's runs over a key: the mean over seeds, with its 95 % interval as a band."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import seaborn
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
    for label, of_line in rows.groupby(by) if by else [("the sweep", rows)]:
        if of_line[y].isna().all():
            raise UsageError(f"no run has {y} where {label} is")
    made, (axes,) = figure(1, 1, width=6, height=4)
    seaborn.lineplot(
        rows, x=x, y=y, hue=by, palette=(PALETTE * 10)[: rows[by].nunique()] if by else None,
        errorbar=_ends, err_style="band" if is_numeric_dtype(rows[x]) else "bars",
        marker="o", ax=axes,
    )  # fmt: skip
    seeds = rows.groupby([x] + ([by] if by else [])).size()
    said = f"mean and 95 % interval of {seeds.min()} to {seeds.max()} runs a point"
    runs = [FinishedRun.load(Path(folder)) for folder in rows[RUN]]
    left_out = num_runs - len(runs)
    invalid = f"; {left_out} INVALID ones left out" if left_out else ""
    stamp_runs(made, runs[:1], said, f"{len(runs)} runs of {table.name}{invalid}")
    return save(made, out or table.with_suffix(".png"))


def _ends(values: pd.Series) -> tuple[float, float]:
    """Of the 95 % interval of the mean."""
    found = interval(list(values))
    half = found.half or 0.0
    return found.mean - half, found.mean + half
