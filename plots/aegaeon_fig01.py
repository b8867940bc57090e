"""Fig. 1: concurrent workloads are skewed (a) and bursty (b).

The paper's production trace is not public. Drawn are its published statistics, and the same
quantities of a public trace with many models (Chatbot Arena, as rescaled in time for VTC).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from harness.schedule import Schedule
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS: tuple[str, ...] = ("aegaeon_fig01",)
COLD_MODELS, COLD_REQUESTS = 0.941, 0.0135  # §2.2: 94.1 % of models get 1.35 % of requests
BIN_S = 10.0


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    (point,) = points
    assert point.path is not None
    schedule = Schedule.load(point.path / "schedule.parquet")
    popular = pd.Series(schedule.model).value_counts()
    skew = pd.DataFrame(
        {
            "panel": "a",
            "models_share": np.arange(1, len(popular) + 1) / len(popular),
            "requests_share": popular.to_numpy()[::-1].cumsum() / len(schedule),
        }
    )
    of_top = schedule.arrival_s[np.array(schedule.model) == popular.index[0]]
    edges_s = np.arange(0.0, schedule.arrival_s[-1] + BIN_S, BIN_S)
    rate = pd.DataFrame(
        {
            "panel": "b",
            "time_s": edges_s[:-1],
            "rate_per_s": np.histogram(of_top, edges_s)[0] / BIN_S,
        }
    )
    made, (left, right) = figure(1, 2, width=9, height=3.4)
    left.plot(
        100 * skew.models_share, 100 * skew.requests_share, drawstyle="steps-post",
        label=f"Chatbot Arena, {len(popular)} models",
    )  # fmt: skip
    left.plot(
        100 * COLD_MODELS, 100 * COLD_REQUESTS, "*", ms=12, color=PALETTE[3],
        label="published: 94.1 % of models, 1.35 %", clip_on=False,
    )  # fmt: skip
    left.set(
        title="(a) requests to the least used models",
        xlabel="models, least used first (%)", ylabel="share of requests (%)",
        xlim=(0, 100), ylim=(0, None),
    )  # fmt: skip
    left.legend(loc="upper left")
    mean = float(rate.rate_per_s.mean())
    right.stairs(rate.rate_per_s, edges_s, fill=True, alpha=0.5, color=PALETTE[0])
    right.axhline(mean, ls="--", color="0.3", lw=1, label=f"its mean, {mean:.2f}/s")
    right.set(
        title="(b) the most used model of the trace", xlabel="time (s)",
        ylabel=f"requests/s in {BIN_S:g} s", xlim=(0, edges_s[-1]), ylim=(0, None),
    )  # fmt: skip
    right.legend(loc="upper right")
    stamp_trace(made)
    return publish(made, pd.concat([skew, rate]), folder, Path(__file__).stem)


def stamp_trace(made: Figure) -> None:
    stamp(
        made, [], "Curves: lmsys_arena/real_trace.csv, 1,500 requests, times rescaled and lengths "
        "cut by VTC's authors; nothing was served. Star: Aegaeon section 2.2, whose trace is not "
        "public.",
    )  # fmt: skip
