"""One schedule live, five times: KunServe, two ablations (Figs. 14, 15), recompute and migration.

Over time: KV that is wanted and there, queue, TTFT, gaps between tokens, and traffic of the links.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import STEP_S, Floats, mechanism, requests, system
from plots.kunserve_timeline import timeline
from plots.panels import legend_above
from plots.runs import events
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("kunserve_live",)
SYSTEMS = {
    "kunserve": "KunServe",
    "kunserve_blocking": "blocking exchange (Fig. 14)",
    "kunserve_drain": "no live restore (Fig. 15)",
    "llumnix_replication": "recompute (replication)",
    "llumnix_migration": "Llumnix, migration",
}
TRAFFIC = {"weights": PALETTE[4], "exchange": PALETTE[1], "migration": PALETTE[2]}
ROWS = ("KV / memory", "waiting requests", "TTFT (s)", "gap between tokens (s)", "links (MB/s)")


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = [
        over_time(point).assign(
            system=system(point), config_hash=point.config_hash(), mechanism=mechanism(point)
        )
        for point in points
    ]
    return pd.concat(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(len(ROWS), len(SYSTEMS), width=15, height=9.5)
    for k, (name, title) in enumerate(SYSTEMS.items()):
        column = axes[k :: len(SYSTEMS)]
        _column(column, rows[rows.system == name])
        column[0].set_title(title)
        column[-1].set_xlabel("seconds")
    for k, name in enumerate(ROWS):
        line = axes[k * len(SYSTEMS) : (k + 1) * len(SYSTEMS)]
        line[0].set_ylabel(name)
        top = max(panel.get_ylim()[1] for panel in line)
        low = min(panel.get_ylim()[0] for panel in line)
        for panel in line:
            panel.set(xlim=(0, rows.time_s.max()), ylim=(low, top))
    legend_above(made, axes, 7)
    return made, (
        "Random-weight model on four paced workers, one run each. Links: KV and weights, "
        "activations not counted."
    )


def over_time(point: Point) -> pd.DataFrame:
    """Each STEP_S: `timeline`, the mean and the longest of the gaps between tokens that end within
    the step, and bytes per second of each kind of TRAFFIC."""
    assert point.path is not None
    found = timeline(point)
    times_s = found.time_s.to_numpy()
    stamps = [np.asarray(times) for times in requests(point.path).token_times_s]
    ends = np.concatenate([times[1:] for times in stamps])
    gaps = pd.Series(np.concatenate([np.diff(times) for times in stamps]))
    by_step = gaps.groupby(np.floor(ends / STEP_S).astype(int))
    steps = np.arange(len(times_s))
    found = found.assign(
        gap_mean_s=by_step.mean().reindex(steps).to_numpy(),
        gap_max_s=by_step.max().reindex(steps).to_numpy(),
    )
    moved = events(point.path, "kv_move", "transfer")
    for purpose in TRAFFIC:
        mine = moved[moved.purpose == purpose] if len(moved) else moved
        found[f"{purpose}_bytes_per_s"] = rate(mine, times_s) if len(mine) else 0.0
    return found


def rate(moved: pd.DataFrame, times_s: Floats) -> Floats:
    """Bytes per second in each of the steps that begin at `times_s`, each copy's spread evenly over
    its time."""
    total = np.zeros(len(times_s))
    starts, ends = moved.start_s.to_numpy(float), moved.end_s.to_numpy(float)
    for start_s, end_s, size in zip(starts, ends, moved.bytes.to_numpy(float), strict=True):
        end_s = max(end_s, start_s + 1e-3)
        inside = np.minimum(times_s + STEP_S, end_s) - np.maximum(times_s, start_s)
        total += size * np.clip(inside, 0, None) / (end_s - start_s) / STEP_S
    return total


def _column(axes: Sequence[Axes], found: pd.DataFrame) -> None:
    time_s = found.time_s
    axes[0].plot(time_s, found.demand, color=PALETTE[0], lw=1.1, label="KV wanted")
    axes[0].plot(time_s, found.capacity, color="0.3", ls=":", lw=1.4, label="KV memory")
    axes[1].plot(time_s, found.waiting, color="0.3", lw=1.1)
    axes[2].plot(time_s, found.ttft_s, color="0.3", lw=1.1)
    axes[3].plot(time_s, found.gap_mean_s, color="0.3", lw=1.1, label="mean gap")
    axes[3].plot(time_s, found.gap_max_s, ".", color=PALETTE[3], ms=2.5, label="longest gap")
    log_scale(axes[3], "y")
    traffic = [found[f"{purpose}_bytes_per_s"] / 1e6 for purpose in TRAFFIC]
    axes[4].stackplot(time_s, traffic, colors=TRAFFIC.values(), labels=TRAFFIC)
