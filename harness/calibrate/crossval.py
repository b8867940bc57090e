"""How well the law predicts what it has not seen: each model, then each device, left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from harness.calibrate.fit import fit_law
from harness.calibrate.profiles import Cells
from harness.calibrate.scores import scores, table


def leave_one_out(cells: Sequence[Cells], what: Literal["model", "device"]) -> pd.DataFrame:
    """Scores of every pair, predicted by a law fitted without its model, or its device."""
    rows = []
    for name in sorted({getattr(c, what) for c in cells}):
        law = fit_law([c for c in cells if getattr(c, what) != name])
        rows += [scores(c, law.terms(c)) for c in cells if getattr(c, what) == name]
    return table(rows)
