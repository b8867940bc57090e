"""The grammar of figures: a figure is described, and drawn from its table.

A PaperFigure says of which experiments it is, how their runs become the rows of FIGURE.csv
(`table`), and how these rows, and nothing else, become a picture and its caption (`plot`): whoever
has the committed table can draw it again. Most are described by one of two decorators:

    @picture("kunserve_fig16", table, ("kunserve_fig16",), shape=(1, 4), size=(11, 3.2), legend=3)
    def fig16(axes: Panels, rows: pd.DataFrame) -> str:
        for panel, (number, title) in zip(axes, TITLES.items(), strict=True):
            bars(panel, rows, "rate", number, PLANS, by="plan")
            panel.set(title=title, xlabel="requests/s")
        return "What the caption says."

    @text("kunserve_table1", table, head=["model", "GPUs"])
    def table1(rows: pd.DataFrame) -> tuple[Words, str]:
        return [[row.model, str(row.gpus)] for row in rows.itertuples()], "What the caption says."

Modules of plots/PAPER define the figures of PAPER: each is found by its name, whatever the module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.errors import UsageError
from harness.experiments.capacity_search import Search
from harness.experiments.points import Only, Point
from harness.files import read_json
from plots.caption import caption
from plots.grey import told_apart
from plots.panels import legend_above
from plots.style import figure, save, text_table

PAPERS = ("aegaeon", "aqua", "blitzscale", "kunserve", "matrix")  # the last compares them
NOTHING = ["nothing was run"]

Points = Sequence[Point]
Panels = list[Axes]  # of a figure, row by row
Table = Callable[[Points], pd.DataFrame]
Draw = Callable[[Panels, pd.DataFrame], str]
Words = Sequence[Sequence[str]]
Quick = bool | Literal["rows"]
Coarse = tuple[Quick, Only]


@dataclass(frozen=True)
class PaperFigure:
    """A figure or a table of a paper. `searches`: of experiments whose curves' ends are searched
    (`harness.experiments.capacity_search`). `only`: of experiments that have more
    runs for other figures those that the table has. `quick`: whether `reproduce` makes it in its
    quick tier of a paper; not, where one seed takes long or tells nothing. "rows": it does, and a
    row with a seed rests on runs of this seed alone, so that one seed's rows tell. `grid`: the runs
    that this tier makes, if not all, on which the figure's claims come to the same."""

    name: str
    table: Table
    plot: Callable[[pd.DataFrame], tuple[Figure, str]]
    experiments: tuple[str, ...] = ()
    searches: Mapping[str, Search] = field(default_factory=dict)
    quick: Quick = True
    grid: Only = field(default_factory=dict)
    only: Only = field(default_factory=dict)

    def runs(self, tier: str) -> Only:
        """Those of its experiments that `reproduce` makes in `tier`."""
        return {**self.only, **(self.grid if tier == "quick" else {})}


def _both(quick: Quick | Coarse) -> Coarse:
    return quick if isinstance(quick, tuple) else (quick, {})


def picture(
    name: str, table: Table, experiments: tuple[str, ...] = (), *,
    searches: Mapping[str, Search] | None = None, shape: tuple[int, int] = (1, 1),
    size: tuple[float, float], legend: int = 0, quick: Quick | Coarse = True,
    only: Only | None = None,
) -> Callable[[Draw], PaperFigure]:  # fmt: skip
    """Describes a figure by what draws `table`'s rows into panels, and says the caption. `shape`:
    rows and columns of panels; `size`: inches; `legend`: columns of the one above all, 0: none;
    `quick`: PaperFigure's, and its `grid`."""

    def described(draw: Draw) -> PaperFigure:
        def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
            made, axes = figure(*shape, width=size[0], height=size[1])
            said = draw(axes, rows)
            if legend:
                legend_above(made, made.axes, legend)
            return made, said

        return PaperFigure(
            name, table, plot, experiments, searches or {}, *_both(quick), only or {}
        )

    return described


def text(
    name: str, table: Table, experiments: tuple[str, ...] = (), *,
    searches: Mapping[str, Search] | None = None, head: Sequence[str], title: str = "",
    quick: Quick | Coarse = True,
) -> Callable[[Callable[[pd.DataFrame], tuple[Words, str]]], PaperFigure]:  # fmt: skip
    """Describes a table of words by what makes of rows its cells below `head`, and the caption."""

    def described(words: Callable[[pd.DataFrame], tuple[Words, str]]) -> PaperFigure:
        def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
            cells, said = words(rows)
            return text_table(cells, head, title), said

        return PaperFigure(name, table, plot, experiments, searches or {}, *_both(quick))

    return described


@cache
def of_paper(paper: str) -> Mapping[str, PaperFigure]:
    """The figures that modules of plots/PAPER define, by name."""
    package = import_module(f"plots.{paper}")
    names = [f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__)]
    every = [value for name in names for value in vars(import_module(name)).values()]
    found: dict[str, PaperFigure] = {}
    for each in every:
        if isinstance(each, PaperFigure):
            assert found.setdefault(each.name, each) is each, f"two figures {each.name}"
    return found


def draw(name: str, folder: Path) -> list[Path]:
    """Writes FIGURE.png and FIGURE.pdf beside the table in `folder`."""
    made = drawn(name, folder)
    return [save(made, folder / f"{name}{suffix}") for suffix in (".pdf", ".png")]


def drawn(name: str, folder: Path) -> Figure:
    """Raises UsageError where `folder` has no table of it."""
    csv, about = folder / f"{name}.csv", folder / f"{name}.json"
    if not (csv.is_file() and about.is_file()):
        raise UsageError(f"{name} has no table in {folder}: leave out --draw-only")
    made, said = of_paper(name.partition("_")[0])[name].plot(pd.read_csv(csv))
    told_apart(made)
    caption(made, said, read_json(about)["origin"] or NOTHING)
    return made
