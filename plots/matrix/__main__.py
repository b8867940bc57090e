"""Writes the tables of docs/matrix.md from those of its figures: `python -m plots.matrix`."""

from __future__ import annotations

import re

import pandas as pd

from harness.calibrate.tables import markdown_rows
from harness.experiments.compose import ROOT
from harness.experiments.figures import published
from harness.files import write_text
from plots.matrix import bands
from plots.matrix.figures import CHANGED, OF_LINKS, SETTINGS, above, by_links, head, settings, words

TABLES = {  # by mark: the figures, the head, the lines
    "burst": ("burst", head, words), "above": ("burst", lambda rows: CHANGED, above),
    "many": ("many", head, words), "tuning": ("tuning", lambda rows: SETTINGS, settings),
    "sensitivity": ("sensitivity", lambda rows: OF_LINKS, by_links),
    "band": ("burst many", lambda rows: bands.HEAD, bands.lines),
}  # fmt: skip


def with_tables(page: str) -> str:
    """`page` with each table between its marks as the rows of its figures have it."""
    for name, (figures, named, lines) in TABLES.items():
        rows = pd.concat(
            pd.read_csv(published("matrix") / f"matrix_{each}.csv") for each in figures.split()
        )
        shown = "\n".join(markdown_rows(named(rows), lines(rows)))
        mark = f"<!-- {name}: written by `python -m plots.matrix` -->"
        page = re.sub(f"{re.escape(mark)}.*?<!-- /{name} -->", f"{mark}\n{shown}\n<!-- /{name} -->",
                      page, flags=re.DOTALL)  # fmt: skip
    return page


if __name__ == "__main__":
    path = ROOT / "docs" / "matrix.md"
    write_text(path, with_tables(path.read_text()))
