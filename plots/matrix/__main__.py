"""Writes the tables of docs/matrix.md from those of its figures: `python -m plots.matrix`."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from harness.experiments.compose import ROOT
from harness.experiments.figures import published
from harness.files import write_text
from plots.matrix.figures import CHANGED, SETTINGS, by_load, changed, head, settings, words

TABLES = {
    "burst": (head, words), "many": (head, words), "tuning": (lambda rows: SETTINGS, settings),
    "sensitivity": (lambda rows: CHANGED, changed),
    "above": (lambda rows: CHANGED, lambda rows: changed(by_load(rows))),
}  # fmt: skip
OF = {"burst": ("burst", "above")}  # ends of curves above its loads


def with_tables(page: str) -> str:
    """`page` with each table between its marks as its figure's rows have it."""
    for name, (named, lines) in TABLES.items():
        of = [published("matrix") / f"matrix_{part}.csv" for part in OF.get(name, (name,))]
        rows = pd.concat(map(pd.read_csv, of))
        top = named(rows)
        shown = "\n".join(map(_line, [top, ["---"] * len(top), *lines(rows)]))
        mark = f"<!-- {name}: written by `python -m plots.matrix` -->"
        page = re.sub(f"{re.escape(mark)}.*?<!-- /{name} -->", f"{mark}\n{shown}\n<!-- /{name} -->",
                      page, flags=re.DOTALL)  # fmt: skip
    return page


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    path = ROOT / "docs" / "matrix.md"
    write_text(path, with_tables(path.read_text()))
