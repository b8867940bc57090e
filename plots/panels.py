"""Panels that many figures share: rows of a table as lines, curves, bars or CDFs, one series for
each value of `by`; and which rows a panel shows.

How a series looks is the same in all figures of a paper: a Look for each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D

from harness.records.run_folder import FinishedRun
from harness.records.simulator_band import bands
from plots.style import log_scale

if TYPE_CHECKING:
    import pandas as pd

SHARES = np.linspace(0.0, 1.0, 201)  # the shares that a CDF in a table has
# A curve hides another that is nearer than this share of y's range or twice this share of y.
SAME = 0.01
FEW = "os^DvPX"  # markers of series with a point or two
OVER = (0, (2, 2))  # the line of what lies on another curve, which shows in the gaps


class Look(NamedTuple):
    label: str
    colour: Any
    marker: str = ""
    line: Any = "-"
    size: float = 4  # of the marker, in points

    @property
    def curve(self) -> dict[str, Any]:
        """The arguments of Axes.plot for this look."""
        return {"color": self.colour, "ls": self.line, "label": self.label}


def facets(
    axes: Iterable[Axes], rows: pd.DataFrame, **columns: Iterable[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yields each panel with the rows that it shows and what it has of each of `columns`: their
    values in turn, those of the last column first."""
    for panel, values in zip(axes, product(*columns.values()), strict=True):
        shown = rows
        for column, value in zip(columns, values, strict=True):
            shown = shown[shown[column] == value]
        yield panel, shown, *values


def over_seeds(rows: pd.DataFrame, x: str, y: str, factor: float = 1.0) -> pd.DataFrame:
    """`factor` x the mean of `y` at each `x`, and how far the least and the most lie from it."""
    found = rows.groupby(x)[y].agg(["mean", "min", "max"]) * factor
    return found.assign(below=found["mean"] - found["min"], above=found["max"] - found["mean"])


def lines(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[Any, Look], *,
    by: str = "system", factor: float = 1.0, apart: float = 0.03,
) -> None:  # fmt: skip
    """Draws `factor` x the mean of `y` over seeds, its range shaded. What lies on a curve is
    dashed; a curve all of which lies below is broader. One or two points are not joined; those of
    several names at one `x` stand side by side, `apart` of the range of `x` from one another, and
    are hollow where their curve would not be solid."""
    drawn: list[tuple[pd.Series, Line2D]] = []
    gap = apart * float(np.ptp(rows[x])) if len(rows) else 0.0
    counts = rows.dropna(subset=[y]).groupby(by)[x].nunique()
    few = [name for name in looks if 0 < counts.get(name, 0) < 3]
    for name, look in looks.items():
        shown = over_seeds(rows[rows[by] == name].dropna(subset=[y]), x, y, factor)
        mean, marked = shown["mean"], {"ms": look.size, "color": look.colour, "label": look.label}
        if name in few:
            at = shown.index + gap * (few.index(name) - (len(few) - 1) / 2)
            spread = [shown.below, shown.above]
            marked["mfc"] = look.colour if look.line == "-" else "white"
            axes.errorbar(at, mean, yerr=spread, fmt=look.marker or FEW[few.index(name)], **marked)
        elif len(shown):
            (line,) = axes.plot(shown.index, mean, marker=look.marker, ls=look.line, **marked)
            axes.fill_between(
                shown.index, shown["min"], shown["max"], color=look.colour, alpha=0.15
            )
            _lay(line, mean, drawn)


def curves(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[Any, Look], *,
    by: str = "system", **line: Any,
) -> None:  # fmt: skip
    """Draws curves of single runs, each narrower than those below it: some coincide for long."""
    shown = [name for name in looks if (rows[by] == name).any()]
    for k, name in enumerate(shown):
        of_name = rows[rows[by] == name]
        look = looks[name].curve | {"lw": len(shown) - k + 0.2} | line
        axes.plot(of_name[x], of_name[y], **look)


def _lay(line: Line2D, curve: pd.Series, drawn: list[tuple[pd.Series, Line2D]]) -> None:
    for other, below in drawn:
        if line.get_linestyle() == "-" and (_same(curve, other) or _same(other, curve)):
            line.set_linestyle(OVER)  # of a line that has no gaps of its own
        if _same(other, curve):  # all of it lies below
            below.set_linewidth(below.get_linewidth() + 1.2)
    drawn.append((curve, line))


def _same(curve: pd.Series, other: pd.Series) -> bool:
    common = curve.index.intersection(other.index)
    if len(common) < 0.9 * len(curve):
        return False
    values = np.concatenate([curve.to_numpy(), other.to_numpy()])
    slack = np.maximum(SAME * max(float(np.ptp(values)), 1e-12), 2 * SAME * other[common].abs())
    return bool((np.abs(curve[common] - other[common]) <= slack).mean() >= 0.9)


def simulator_bands(
    axes: Axes, run: FinishedRun, latency: str, values_s: npt.NDArray[np.float64], colour: Any
) -> None:
    """Draws bars across the CDF of a simulated run's `latency`, a key of its summary with these
    values: where a real engine's mean and percentiles may lie, as far as parity has points."""
    found = bands(run.manifest, run.summary)
    for statistic, value_s in run.summary[latency].items():
        band = found.get(f"{latency}.{statistic}")
        if band is not None and value_s is not None:
            mean = float((values_s <= value_s).mean())
            share = mean if statistic == "mean" else float(statistic[1:]) / 100
            axes.hlines(share, *band.real(value_s), color=colour, lw=4, alpha=0.35)


def quantiles(values: npt.ArrayLike) -> pd.DataFrame:
    """The CDF of `values` as rows of a table: `share` and `value`; nan is left out."""
    import pandas as pd  # 0.4 s, which the picture of a run does without

    found = np.asarray(values, float)
    found = found[np.isfinite(found)]
    return pd.DataFrame({"share": SHARES, "value": np.quantile(found, SHARES)})


def cdfs(
    axes: Axes, rows: pd.DataFrame, looks: Mapping[str, Look], *, by: str = "system",
    factor: float = 1.0,
) -> None:  # fmt: skip
    """Draws CDFs of `share` and `value`, as `quantiles` gives them; log x. Curves that lie on
    others are drawn as in `lines`."""
    drawn: list[tuple[pd.Series, Line2D]] = []
    for name, look in looks.items():
        shown = rows[rows[by] == name].sort_values("share")
        if not shown.empty:
            (line,) = axes.plot(factor * shown.value, shown.share, **look.curve)
            _lay(line, np.log(shown.set_index("share").value.clip(lower=1e-9)), drawn)
    axes.set(ylim=(0, 1.02), ylabel="share")
    log_scale(axes, "x")


def legend_above(made: FigureBase, axes: Sequence[Axes], columns: int) -> None:
    """Puts one legend for all of `axes` above them, each name once."""
    named: dict[str, Any] = {}
    for panel in axes:
        handles, labels = panel.get_legend_handles_labels()
        named |= {label: h for label, h in zip(labels, handles, strict=True) if label not in named}
    if named:
        made.legend(list(named.values()), list(named), loc="outside upper center", ncols=columns)


def bars(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[Any, Look], *,
    by: str = "system", factor: float = 1.0, groups: Mapping[Any, str] | None = None,
) -> None:  # fmt: skip
    """Draws a group of bars for each `x`, those that `groups` gives a label, or every number:
    `factor` x the mean of `y` over seeds, and its range."""
    named = groups or {value: f"{value:g}" for value in sorted(rows[x].dropna().unique())}
    places, wide = {value: at for at, value in enumerate(named)}, 0.8 / len(looks)
    for k, (name, look) in enumerate(looks.items()):
        shown = over_seeds(rows[(rows[by] == name) & rows[x].isin(places)], x, y, factor)
        if shown.empty:  # on a coarser grid
            continue
        at = [places[value] + wide * (k - (len(looks) - 1) / 2) for value in shown.index]
        how: dict[str, Any] = {"color": look.colour, "label": look.label, "error_kw": {"lw": 0.8}}
        axes.bar(at, shown["mean"], 0.92 * wide, yerr=[shown.below, shown.above], **how)
    axes.set_xticks(range(len(named)), list(named.values()))
    axes.grid(False, axis="x")


def spans(axes: Axes, rows: pd.DataFrame, place: int, height: float, **look: Any) -> None:
    """Draws boxes from `start_s` to `end_s` in one lane of a Gantt chart."""
    times = list(zip(rows.start_s, rows.end_s - rows.start_s, strict=True))
    axes.broken_barh(times, (place - height / 2, height), **look)


def lanes(axes: Axes, names: Sequence[str]) -> None:
    """The lanes of a Gantt chart, the first one above."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
