"""Fig. 13: TTFT and TPOT in a burst of three times the rate, arXiv (section 9.4)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from plots import aqua_burst

EXPERIMENTS = ("aqua_fig13",)
table = aqua_burst.table


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    note = "Yi-34B-200K, arXiv scaled to a median of 7,000 tokens, three times the rate."
    return aqua_burst.plot(rows, ("ttft_s", "tpot_s"), note)
