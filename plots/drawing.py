"""Draws a figure from its table: FIGURE.csv, and what FIGURE.json says of its runs.

A figure is a module plots/FIGURE.py. `table(points)` makes the rows of FIGURE.csv from runs;
`plot(rows)` draws these rows, and nothing else, and returns the figure and what its caption says.
So the committed table is all that a figure shows, and whoever has it can draw it again.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from harness.errors import UsageError
from harness.files import read_json
from plots.caption import caption
from plots.style import save

NOTHING = ["nothing was run"]


def draw(name: str, folder: Path) -> list[Path]:
    """Writes FIGURE.png and FIGURE.pdf beside the table in `folder`."""
    made = drawn(name, folder)
    return [save(made, folder / f"{name}.pdf", keep=True), save(made, folder / f"{name}.png")]


def drawn(name: str, folder: Path) -> Figure:
    """Raises UsageError where `folder` has no table of it."""
    csv, about = folder / f"{name}.csv", folder / f"{name}.json"
    if not (csv.is_file() and about.is_file()):
        raise UsageError(f"{name} has no table in {folder}: leave out --draw-only")
    made: Figure
    made, said = import_module(f"plots.{name}").plot(pd.read_csv(csv))
    caption(made, said, read_json(about)["origin"] or NOTHING)
    return made
