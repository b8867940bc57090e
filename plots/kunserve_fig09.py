"""Figs. 6 and 9: one drop as a Gantt chart: KV that moves each way and the tokens of victims.

Fig. 6 is the blocking exchange, Fig. 9 the live one. Drawn from simulated runs of Fig. 14;
`kunserve_fig14_live` has both from live ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.errors import RunError
from harness.experiments.points import Point
from plots.kunserve import requests
from plots.runs import events
from plots.style import PALETTE, figure

EXPERIMENTS = ("kunserve_fig14",)
GBPS = 50
VICTIMS = 4
VICTIMS_RUN_S = (1.0, 10.0)  # before and after the drop
BEFORE_S, AFTER_S = 0.6, 3.4
TITLES = {
    "blocking": "Fig. 6: victims wait for their KV (blocking)",
    "live": "Fig. 9: victims go on, their attention where the KV is (live)",
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.concat([lanes(point) for point in points if _shown(point)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 1, width=9, height=6.4)
    for panel, (exchange, title) in zip(axes, TITLES.items(), strict=True):
        gantt(panel, rows[rows.series == exchange])
        panel.set(title=title, xlabel="seconds since the drop")
    return made, (
        f"Azure code arrivals, seed 0. Two instances of 14B, {GBPS} Gbps. Bars: a request's KV, "
        "first chunk to last block; ticks: tokens of four requests."
    )


def _shown(point: Point) -> bool:
    return float(point.overrides["hardware.nic_bytes_per_s"]) * 8e-9 == GBPS and point.seed == 0


def lanes(point: Point, run_s: tuple[float, float] = VICTIMS_RUN_S) -> pd.DataFrame:
    """Moves of KV, and tokens of VICTIMS requests that ran for `run_s` before and after it, around
    the first drop; times since it. Raises RunError where there is none."""
    assert point.path is not None
    drop_s = events(point.path, "drop").start_s.min()
    moves = events(point.path, "kv_move")
    if moves.empty:
        raise RunError(
            f"{point.path.name}: nothing is dropped and no KV moves: there is no exchange"
        )
    moves = moves[(moves.purpose == "exchange") & (moves.start_s < drop_s + AFTER_S)]
    lane = "KV " + moves.instance + " to " + moves.to
    parts = [pd.DataFrame({"lane": lane, "start_s": moves.start_s, "end_s": moves.end_s})]
    found = requests(point.path)
    victims = found[(found.first_s < drop_s - run_s[0]) & (found.last_s > drop_s + run_s[1])]
    for k, victim in enumerate(victims.iloc[:VICTIMS].itertuples(), 1):
        times = np.asarray(victim.token_times_s)
        times = times[(times > drop_s - BEFORE_S) & (times < drop_s + AFTER_S)]
        lane = f"tokens of victim {k} ({victim.instance})"
        parts.append(pd.DataFrame({"lane": lane, "start_s": times, "end_s": times}))
    rows = pd.concat(parts)
    return rows.assign(
        start_s=rows.start_s - drop_s, end_s=rows.end_s - drop_s, part="lane",
        series=point.overrides["system.exchange"], config_hash=point.config_hash(),
    )  # fmt: skip


def gantt(axes: Axes, found: pd.DataFrame) -> None:
    names = sorted(found.lane.unique())
    for row, name in enumerate(names):
        mine = found[found.lane == name]
        if name.startswith("KV"):
            spans = list(zip(mine.start_s, mine.end_s - mine.start_s, strict=True))
            axes.broken_barh(spans, (row - 0.35, 0.7), color=PALETTE[4], lw=0.3, edgecolor="white")
        else:
            axes.plot(mine.start_s, [row] * len(mine), "|", color=PALETTE[0], ms=9)
    axes.axvline(0, color="0.3", lw=0.9, ls="--")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-BEFORE_S, AFTER_S), ylim=(len(names) - 0.5, -0.5))
    axes.grid(False, axis="y")
