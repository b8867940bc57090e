"""Fig. 1 from live runs: FCFS, CFS on DRAM and AQUA on one schedule whose rate doubles, on paced
workers of this machine; TTFT, TPOT and request completion time in order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots import aqua_burst

EXPERIMENTS = ("aqua_live_burst",)


def table(points: Sequence[Point]) -> pd.DataFrame:
    return aqua_burst.table(points, "live")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    note = "Random-weight model, BurstGPT's lengths; twice the rate for 20 s."
    return aqua_burst.plot(rows, list(aqua_burst.LATENCIES), note)
