"""Fig. 1: TTFT and request completion time in a burst on one A100 (section 1)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from plots import aqua_burst

EXPERIMENTS = ("aqua_fig01",)
table = aqua_burst.table


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    note = "Yi-34B-200K (none is named), ShareGPT, twice the stable rate."
    return aqua_burst.plot(rows, ("ttft_s", "rct_s"), note)
