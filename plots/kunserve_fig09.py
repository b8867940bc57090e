"""Figs. 6 and 9: one drop as a Gantt chart: KV that moves each way and the tokens of victims.

Fig. 6 is the blocking exchange, Fig. 9 the live one. Drawn from simulated runs of Fig. 14;
`kunserve_fig14_live` has both from live ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.errors import RunError
from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.kunserve import caption, requests
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


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(2, 1, width=9, height=6.4)
    rows, drawn = [], []
    for axis, (exchange, title) in zip(axes, TITLES.items(), strict=True):
        point = next(p for p in points if _is(p, exchange))
        drawn.append(point)
        found = lanes(point)
        gantt(axis, found)
        axis.set_title(title)
        rows.append(found.assign(exchange=exchange, config_hash=point.config_hash()))
    axes[-1].set_xlabel("seconds since the drop")
    caption(
        made, drawn, f"Two instances of 14B, {GBPS} Gbps. Bars: a request's KV, first chunk to "
        "last block; ticks: tokens of four requests.",
    )  # fmt: skip
    return publish(made, pd.concat(rows), folder, Path(__file__).stem)


def _is(point: Point, exchange: str) -> bool:
    same = float(point.overrides["hardware.nic_bytes_per_s"]) * 8 / 1e9 == GBPS
    return same and point.seed == 0 and point.overrides["system.exchange"] == exchange


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
    rows = [
        {"lane": f"KV {row.instance} to {row.to}", "start_s": float(str(row.start_s)) - drop_s,
         "end_s": float(str(row.end_s)) - drop_s}
        for row in moves.itertuples()
    ]  # fmt: skip
    found = requests(point.path)
    victims = found[(found.first_s < drop_s - run_s[0]) & (found.last_s > drop_s + run_s[1])]
    for k, (times, instance) in enumerate(
        zip(victims.token_times_s.iloc[:VICTIMS], victims.instance.iloc[:VICTIMS], strict=True)
    ):
        stamps = np.asarray(times) - drop_s
        near = stamps[(stamps > -BEFORE_S) & (stamps < AFTER_S)]
        rows += [
            {"lane": f"tokens of victim {k + 1} ({instance})", "start_s": s, "end_s": s}
            for s in near
        ]
    return pd.DataFrame(rows)


def gantt(axes: Axes, found: pd.DataFrame) -> None:
    names = sorted(found.lane.unique())
    for row, name in enumerate(names):
        mine = found[found.lane == name]
        if name.startswith("KV"):
            spans = list(zip(mine.start_s, mine.end_s - mine.start_s, strict=True))
            axes.broken_barh(spans, (row - 0.35, 0.7), color=PALETTE[1], lw=0.3, edgecolor="white")
        else:
            axes.plot(mine.start_s, [row] * len(mine), "|", color=PALETTE[0], ms=9)
    axes.axvline(0, color="0.3", lw=0.9, ls="--")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-BEFORE_S, AFTER_S), ylim=(len(names) - 0.5, -0.5))
    axes.grid(False, axis="y")
