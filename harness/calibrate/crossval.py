"""How well the law predicts what it has not seen: each model, then each device, left out.

A device is left out with all others of its chip: an H800 would tell the law of an H100 too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.fit import fit_law
from harness.calibrate.profiles import Cells
from harness.calibrate.scores import scores, table


def leave_one_out(cells: Sequence[Cells], what: Literal["model", "device"]) -> pd.DataFrame:
    """Scores of every pair, predicted by a law fitted without its model, or its chip."""
    group = [c.model if what == "model" else chip(c.device) for c in cells]
    rows = []
    for name in sorted(set(group)):
        law = fit_law([c for c, own in zip(cells, group, strict=True) if own != name])
        rows += [
            scores(c, law.terms(c)) for c, own in zip(cells, group, strict=True) if own == name
        ]
    return table(rows)


def chip(device: str) -> str:
    """The same for devices with the same FLOP/s: their memories and links may differ."""
    return f"{zoo.device(device).dense_flop_per_s:g} FLOP/s"
