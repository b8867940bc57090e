"""A number of a sweep's runs over a key: the mean over seeds, with its 95 % interval as a band.

Bars across simulated means over a number are the simulator's band.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn
from matplotlib.axes import Axes
from pandas.api.types import is_numeric_dtype

from harness.comparing.bands import real_ends
from harness.errors import UsageError
from harness.records.interval import interval
from harness.records.run_folder import FinishedRun
from harness.records.simulator_band import regime
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
    num_runs, rows = len(rows), rows[rows["verdict"] == "VALID"].reset_index(drop=True)
    if rows.empty:
        raise UsageError(f"no run of {table} is VALID")
    for label, of_line in rows.groupby(by) if by else [("the sweep", rows)]:
        if of_line[y].isna().all():
            raise UsageError(f"no run has {y} where {label} is")
    made, (axes,) = figure(1, 1, width=6, height=4)
    colours = dict(zip(rows[by].unique(), PALETTE * 10, strict=False)) if by else None
    numeric = is_numeric_dtype(rows[x])
    seaborn.lineplot(
        rows, x=x, y=y, hue=by, palette=colours, errorbar=_ends,
        err_style="band" if numeric else "bars", marker="o", ax=axes,
    )  # fmt: skip
    seeds = rows.groupby([x] + ([by] if by else [])).size()
    runs = [FinishedRun.load(Path(folder)) for folder in rows[RUN]]
    left_out = num_runs - len(runs)
    said = [
        f"mean and 95 % interval of {seeds.min()} to {seeds.max()} runs a point",
        f"{len(runs)} runs of {table.name}",
        *([f"{left_out} INVALID ones left out"] if left_out else []),
        *(_bands(axes, rows, runs, x, y, by, colours) if numeric else []),
    ]
    stamp_runs(made, runs[:1], "; ".join(said))
    return save(made, out or table.with_suffix(".png"))


def _bands(
    axes: Axes, rows: pd.DataFrame, runs: Sequence[FinishedRun], x: str, y: str, by: str | None,
    colours: Mapping[Any, Any] | None,
) -> Iterator[str]:  # fmt: skip
    """Draws a bar where a real engine's mean may lie, for each point of simulated runs that has a
    band. Yields what to say of them, and of the loads without one."""
    drawn, without = False, set[str]()
    points: Any = rows.dropna(subset=[y]).groupby([x] + ([by] if by else []))
    for point, of_point in points:
        simulated = [runs[i] for i in of_point.index if runs[i].manifest["simulated"]]
        ends = real_ends(simulated, y, float(of_point[y].mean()))
        if ends is None:
            without |= {regime(run.summary) for run in simulated}
        elif simulated:
            colour = colours[point[1]] if colours else PALETTE[0]
            axes.vlines(point[0], *ends, color=colour, lw=4, alpha=0.35)
            drawn = True
    if drawn:
        yield "bars: the simulator's band"
    if without:
        yield f"no simulator's band of {y} for runs that are {' or '.join(sorted(without))}"


def _ends(values: pd.Series) -> tuple[float, float]:
    """Of the 95 % interval of the mean."""
    found = interval(list(values))
    half = found.half or 0.0
    return found.mean - half, found.mean + half
