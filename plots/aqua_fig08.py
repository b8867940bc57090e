"""Fig. 8: TTFT and TPOT in a burst on Llama-3.1-70B over two H100 (section 9.3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from plots import aqua_burst

EXPERIMENTS = ("aqua_fig08",)
table = aqua_burst.table


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    note = "Llama-3.1-70B, TP 2, ShareGPT, twice the stable rate; an idle Llama-3.1-8B lends."
    return aqua_burst.plot(rows, ("ttft_s", "tpot_s"), note)
