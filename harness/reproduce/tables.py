"""A figure's table made again, held against the committed one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from harness.claims.assess import figure_table
from harness.experiments.lineage import COLUMNS

SAME = 1e-6  # relative; the tables have six digits


def difference(made: Path, committed: Path) -> str:
    """How two CSVs of one figure differ, in a few words; empty: they do not.

    Which runs a row is of is not compared: configurations and schedules have other hashes after a
    change of code that changes no number.
    """
    if not committed.is_file():
        return "nothing is committed"
    new, old = (figure_table(path).drop(columns=list(COLUMNS), errors="ignore") for path in
                (made, committed))  # fmt: skip
    if list(new.columns) != list(old.columns):
        return f"columns {', '.join(sorted(set(new.columns) ^ set(old.columns)))}"
    if len(new) != len(old):
        return f"{len(new)} rows, {len(old)} committed"
    found = {name: _column(new[name], old[name]) for name in new.columns}
    worst = sorted(((value, name) for name, value in found.items() if value), reverse=True)
    if not worst:
        return ""
    value, name = worst[0]
    more = f" and {len(worst) - 1} other columns" if len(worst) > 1 else ""
    return f"{name}{more}, " + (f"by up to {value:.1%}" if np.isfinite(value) else "in words")


def _column(new: pd.Series, old: pd.Series) -> float:
    """The largest relative difference of a column; 0: none, infinite: words differ."""
    a, b = (pd.to_numeric(each, errors="coerce").to_numpy(np.float64) for each in (new, old))
    words = [each.astype(object).fillna("").astype(str).to_numpy() for each in (new, old)]
    if (words[0] != words[1])[np.isnan(a) | np.isnan(b)].any():
        return float("inf")
    scale = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(scale > 0, np.abs(a - b) / scale, 0.0)
    largest = float(np.nanmax(relative, initial=0.0))
    return largest if largest > SAME else 0.0
