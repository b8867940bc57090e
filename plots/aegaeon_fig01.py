"""Fig. 1: concurrent workloads are skewed (a) and bursty (b).

The paper's production trace is not public. Drawn are its published statistics, and the same
quantities of a public trace with many models (Chatbot Arena, as rescaled in time for VTC).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from harness.schedule import Schedule
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig01",)
COLD_MODELS, COLD_REQUESTS = 0.941, 0.0135  # §2.2: 94.1 % of models get 1.35 % of requests
BIN_S = 10.0


def table(points: Sequence[Point]) -> pd.DataFrame:
    (point,) = points
    assert point.path is not None
    schedule = Schedule.load(point.path / "schedule.parquet")
    popular = pd.Series(schedule.model).value_counts()
    skew = pd.DataFrame(
        {
            "models_share": np.arange(1, len(popular) + 1) / len(popular),
            "requests_share": popular.to_numpy()[::-1].cumsum() / len(schedule),
        }
    )
    of_top = schedule.arrival_s[np.array(schedule.model) == popular.index[0]]
    edges_s = np.arange(0.0, schedule.arrival_s[-1] + BIN_S, BIN_S)
    rate = pd.DataFrame(
        {"time_s": edges_s[:-1], "rate_per_s": np.histogram(of_top, edges_s)[0] / BIN_S}
    )
    trace = pd.concat([skew.assign(panel="a"), rate.assign(panel="b")])
    cold = pd.DataFrame(
        {
            "panel": "a", "inputs": "paper", "models_share": [COLD_MODELS],
            "requests_share": COLD_REQUESTS,
        }
    )  # fmt: skip
    return pd.concat([trace.assign(config_hash=point.config_hash()), cold])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (left, right) = figure(1, 2, width=9, height=3.4)
    cold = rows.inputs == "paper"
    skew, rate = rows[(rows.panel == "a") & ~cold], rows[rows.panel == "b"]
    left.plot(
        100 * skew.models_share, 100 * skew.requests_share, drawstyle="steps-post",
        label=f"Chatbot Arena, {len(skew)} models",
    )  # fmt: skip
    left.plot(
        100 * rows[cold].models_share, 100 * rows[cold].requests_share, "*", ms=12,
        color=PALETTE[3], label="published: 94.1 % of models, 1.35 %", clip_on=False,
    )  # fmt: skip
    left.set(
        title="(a) requests to the least used models",
        xlabel="models, least used first (%)", ylabel="share of requests (%)",
        xlim=(0, 100), ylim=(0, None),
    )  # fmt: skip
    left.legend(loc="upper left")
    edges_s = [*rate.time_s, rate.time_s.iloc[-1] + BIN_S]
    mean = rate.rate_per_s.mean()
    right.stairs(rate.rate_per_s, edges_s, fill=True, alpha=0.5, color=PALETTE[0])
    right.axhline(mean, ls="--", color="0.3", lw=1, label=f"its mean, {mean:.2f}/s")
    right.set(
        title="(b) the most used model of the trace", xlabel="time (s)",
        ylabel=f"requests/s in {BIN_S:g} s", xlim=(0, edges_s[-1]),
        ylim=(0, 1.2 * rate.rate_per_s.max()),
    )  # fmt: skip
    right.legend(loc="upper right")
    return made, (
        "Curves: lmsys_arena/real_trace.csv, 1,500 requests, times rescaled and lengths cut by "
        "VTC's authors. Star: Aegaeon section 2.2, whose trace is not public."
    )
