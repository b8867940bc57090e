"""Fig. 15: with live restore and with requests that end in the pipeline, over two spikes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import FACTOR, caption, numbers, requests
from plots.kunserve_timeline import timeline
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("kunserve_fig15", "kunserve_fig10_burstgpt")
RESTORE = {
    "live": ("live restore", PALETTE[0]),
    "drain": ("without: requests end in the pipeline", PALETTE[1]),
}
SECOND_SPIKE_S = 110.0  # of the window: the second spike begins then
PANELS = {
    "demand": "KV demand / memory",
    "waiting": "waiting requests",
    "ttft_s": "TTFT (s)",
    "tokens_per_s": "tokens/s",
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    modest = [
        requests(p.path) for p in points
        if p.path is not None and p.experiment == "kunserve_fig10_burstgpt"
        and p.overrides["workload.scale.rate"] == "1.0"
        and p.overrides["experiment/kunserve/system@_global_"] == "llumnix_replication"
    ]  # fmt: skip
    pooled = pd.concat(modest)
    slo_s = FACTOR * pooled.ttft_s.median(), FACTOR * pooled.tbt_s.median()
    shown = [p for p in points if p.experiment == "kunserve_fig15"]
    made, axes = figure(4, 1, width=9, height=7.6)
    rows = []
    for point in shown:
        restore = point.overrides["system.restore"]
        assert point.path is not None
        found, over_time = requests(point.path), timeline(point)
        late, slow = found.ttft_s > slo_s[0], found.tbt_s > slo_s[1]
        spike = over_time[over_time.time_s > SECOND_SPIKE_S]
        least = (1 - spike.held / spike.capacity).min()
        rows.append(
            numbers(point) | {"late": late.mean(), "slow": slow.mean(),
                              "violating": (late | slow).mean(), "free": max(0.0, least)}
        )  # fmt: skip
        if point.seed == 0:
            label, colour = RESTORE[restore]
            for axis, (column, title) in zip(axes, PANELS.items(), strict=True):
                axis.plot(over_time.time_s, over_time[column], color=colour, label=label, lw=1.1)
                axis.set_ylabel(title)
            axes[0].plot(over_time.time_s, over_time.capacity, color=colour, ls=":", lw=1.2)
    log_scale(axes[2], "y")
    for axis in axes[:-1]:
        axis.sharex(axes[-1])
    axes[-1].set_xlabel("seconds")
    axes[0].legend(loc="upper center")
    caption(made, shown, "Seed 0. Dotted: memory for KV over what it is with nothing dropped.")
    return publish(made, ablated(pd.DataFrame(rows)), folder, Path(__file__).stem)


def ablated(rows: pd.DataFrame) -> pd.DataFrame:
    """With what live restore removes of each number, and P99 TTFT without it over with it."""
    found = rows.set_index(["restore", "seed"])
    live, drain = found.loc["live"], found.loc["drain"]
    for column in ("ttft_p50_s", "ttft_p99_s", "tbt_p50_s", "tbt_p99_s"):
        removed = 1 - live[column] / drain[column]
        name = column.removesuffix("_s")
        rows[f"{name}_removed"] = np.where(rows.restore == "live", rows.seed.map(removed), np.nan)
    over = drain.ttft_p99_s / live.ttft_p99_s
    return rows.assign(
        ttft_p99_without=np.where(rows.restore == "live", rows.seed.map(over), np.nan)
    )
