"""Fig. 12 from a live run: a burst reaches the lender, it asks its memory back, the borrower's
tensors go to DRAM and come back.

(a) what is lent, and requests that wait at the lender; (b) the borrower's paged KV by place;
(c) its tokens/s.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import events, paged_gb
from plots.aqua_fig12 import lender, timeline
from plots.panels import legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_live_elastic",)
STEP_S = 0.25
# What copies for each purpose add to what is paged to each place.
SIGNS = {
    "lease": {
        "page out to lease": 1, "page in from lease": -1,
        "migrate to DRAM": -1, "migrate to lease": 1,
    },
    "DRAM": {
        "page out to DRAM": 1, "page in from DRAM": -1,
        "migrate to DRAM": 1, "migrate to lease": -1,
    },
}  # fmt: skip
COLOURS = {"lease": PALETTE[2], "DRAM": PALETTE[1]}


def table(points: Sequence[Point]) -> pd.DataFrame:
    (point,) = points
    rows = timeline(point, "borrower", "lender", STEP_S)
    rows = rows.assign(**{f"{place}_mb": paged_mb(point, rows.at_s, place) for place in SIGNS})
    run = {"row": "run", "peak_lent_gb": rows.lent_gb.max(), "mechanism": paged_gb(point, "aqua")}
    both = pd.concat([pd.DataFrame([run]), rows.assign(row="time")], ignore_index=True)
    return both.assign(system="aqua", seed=point.seed)


def paged_mb(point: Point, at_s: pd.Series, place: str) -> np.ndarray:
    """By the ends of copies: bytes that lie in `place` at each time. Those of a request that ends
    or is evicted while it is paged stay counted."""
    moves = events(point, "kv_move")
    moves = moves.sort_values("end_s", kind="stable")
    change = moves.bytes * moves.purpose.map(SIGNS[place]).fillna(0)
    held = np.append(0.0, change.cumsum().to_numpy(float))
    return held[np.searchsorted(moves.end_s.to_numpy(float), at_s, side="right")] / 1e6


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows[rows.row == "time"].assign(lent_mb=1e3 * rows.lent_gb)
    made, axes = figure(1, 3, width=13, height=4.0)
    waiting = lender(axes[0], shown, "lent_mb")
    axes[0].set(title="(a) the lender", ylabel="lent (MB)")
    for place, colour in COLOURS.items():
        axes[1].plot(shown.at_s, shown[f"{place}_mb"], color=colour, label=f"in {place}")
    axes[1].set(title="(b) the borrower's paged KV", ylabel="MB")
    axes[2].plot(shown.at_s, shown.tokens_per_s, color=PALETTE[0], label="tokens/s")
    axes[2].set(title="(c) the borrower", ylabel="tokens/s")
    for panel in axes:
        panel.set(xlabel="seconds", ylim=(0, None))
    legend_above(made, (axes[0], waiting, axes[1]), 4)
    return made, "Two random-weight models on paced workers, one run."
