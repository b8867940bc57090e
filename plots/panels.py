"""Panels that many figures share: rows of a table as lines or as CDFs, one for each value of `by`.

How a series looks is the same in all figures of a paper: a Look for each value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.style import log_scale

SHARES = np.linspace(0.0, 1.0, 201)  # of a CDF in a table
SAME = 0.01  # of the panel's range of y: a curve nearer than this to another hides it
OVER = (0, (2, 2))  # the line of what lies on another curve, which shows in the gaps


class Look(NamedTuple):
    label: str
    colour: Any
    marker: str = ""
    line: Any = "-"


def lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[str, Look], *,
    by: str = "system", factor: float = 1.0,
) -> None:  # fmt: skip
    """`factor` x the mean of `y` over seeds, its range shaded. What lies on a curve is dashed."""
    drawn: list[pd.Series] = []
    for name, look in looks.items():
        of_name = rows[rows[by] == name].dropna(subset=[y])
        if of_name.empty:
            continue
        shown = of_name.groupby(x)[y].agg(["mean", "min", "max"]) * factor
        over = any(_same(shown["mean"], other) for other in drawn)
        axes.plot(
            shown.index, shown["mean"], color=look.colour, marker=look.marker, ms=4,
            ls=OVER if over else look.line, label=look.label,
        )  # fmt: skip
        axes.fill_between(shown.index, shown["min"], shown["max"], color=look.colour, alpha=0.15)
        drawn.append(shown["mean"])


def _same(curve: pd.Series, other: pd.Series) -> bool:
    common = curve.index.intersection(other.index)
    if len(common) < 0.9 * len(curve):
        return False
    values = np.concatenate([curve.to_numpy(), other.to_numpy()])
    slack = SAME * max(float(np.ptp(values)), 1e-12)
    return bool((np.abs(curve[common] - other[common]) <= slack).mean() >= 0.9)


def quantiles(values: npt.ArrayLike) -> pd.DataFrame:
    """The CDF of `values` as rows of a table: `share` and `value`; nan is left out."""
    found = np.asarray(values, float)
    found = found[np.isfinite(found)]
    return pd.DataFrame({"share": SHARES, "value": np.quantile(found, SHARES)})


def cdfs(
    axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], *, by: str = "system",
    factor: float = 1.0,
) -> None:  # fmt: skip
    """Of `share` and `value`, as `quantiles` gives them; log x."""
    for name, look in looks.items():
        shown = rows[rows[by] == name].sort_values("share")
        if not shown.empty:
            axes.plot(
                factor * shown.value, shown.share, color=look.colour, ls=look.line,
                label=look.label,
            )  # fmt: skip
    axes.set(ylim=(0, 1.02), ylabel="share")
    log_scale(axes, "x")


def legend_above(made: Figure, axes: Sequence[Axes], columns: int) -> None:
    """One legend for all of `axes` above them, each name once."""
    named: dict[str, Any] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        named |= {label: h for label, h in zip(labels, handles, strict=True) if label not in named}
    if named:
        made.legend(list(named.values()), list(named), loc="outside upper center", ncols=columns)
