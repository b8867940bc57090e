"""What Figs. 1, 8 and 13 share: latencies of requests in order of arrival, in a burst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import SYSTEMS, config, nested, overrides, paged_gb, requests
from plots.panels import legend_above
from plots.style import figure, log_scale

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "rct_s": "request completion time"}
SHOWN_SEED = 0


def table(points: Sequence[Point], group: str = "system") -> pd.DataFrame:
    """A row for each run, and one for each request of the seed that is drawn. `group`: of
    experiment/aqua, whose options are the systems."""
    runs, shown = [], []
    for point in points:
        system, rows = overrides(point)[group], phases(point)
        named: dict[str, Any] = {"system": system, "seed": point.seed}
        more = {"row": "run", "mechanism": paged_gb(point, system)}
        runs.append(named | summed_up(rows) | more)
        if point.seed == SHOWN_SEED:
            rows = rows[["order", "phase", "prompt_tokens", "output_tokens", *LATENCIES]]
            shown.append(rows.assign(row="request", **named))
    return pd.concat([pd.DataFrame(runs), *shown], ignore_index=True)


def phases(point: Point) -> pd.DataFrame:
    """The run's requests, each before, in or after the burst."""
    rows = requests(point)
    burst = config(point)["workload"]["arrivals"]["burst"]
    until = rows.arrival_s - burst["start_s"]
    inside = np.where(until < burst["duration_s"], "burst", "after")
    return rows.assign(phase=np.where(until < 0, "before", inside))


def summed_up(run: pd.DataFrame) -> dict[str, float]:
    """The numbers that are claimed: peaks, means and medians by phase."""
    before, burst, after = (run[run.phase == phase] for phase in ("before", "burst", "after"))
    # High, by our reading: above 1.25 times the median of those before the burst.
    high = run[run.tpot_s > 1.25 * before.tpot_s.median()].order
    return {
        "num_burst": len(burst), "num_failed": int((run.status != "completed").sum()),
        "peak_ttft_s": run.ttft_s.max(), "mean_ttft_s": run.ttft_s.mean(),
        "before_ttft_s": before.ttft_s.median(), "before_mean_ttft_s": before.ttft_s.mean(),
        "burst_ttft_s": burst.ttft_s.mean(), "after_ttft_s": after.ttft_s.mean(),
        "peak_tpot_s": run.tpot_s.max(), "mean_tpot_s": run.tpot_s.mean(),
        "burst_tpot_s": burst.tpot_s.mean(), "mean_rct_s": run.rct_s.mean(),
        "burst_rct_s": burst.rct_s.mean(), "high_from": high.min(), "high_until": high.max(),
    }  # fmt: skip


def plot(rows: pd.DataFrame, columns: Sequence[str], note: str) -> tuple[Figure, str]:
    shown = rows[rows.row == "request"]
    made, axes = figure(len(columns), 1, width=9, height=2.6 * len(columns))
    for panel, letter, column in zip(axes, "abc", columns, strict=False):
        nested(panel, shown, "order", column, SYSTEMS)
        burst = shown[shown.phase == "burst"].order
        panel.axvspan(burst.min() - 0.5, burst.max() + 0.5, color="0.92", zorder=0, lw=0)
        panel.set(title=f"({letter}) {LATENCIES[column]}", ylabel="seconds")
        panel.set_xlim(0, shown.order.max() + 1)
        log_scale(panel, "y")
    axes[-1].set_xlabel("request, in order of arrival")
    legend_above(made, axes, 4)
    peaks = rows[rows.row == "run"].groupby("system").peak_ttft_s
    by_seed = [
        f"{SYSTEMS[name].label} {', '.join(f'{s:.2g}' for s in peaks.get_group(name))}"
        for name in ("fcfs", "aqua")
    ]
    return made, (
        f"{note} Seed {SHOWN_SEED}; where curves coincide, later ones are narrower. Grey: the "
        f"burst (as many are redirected after it). Peak TTFT (s) by seed: {'; '.join(by_seed)}."
    )
