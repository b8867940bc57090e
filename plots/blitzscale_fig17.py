"""Fig. 17: request rate, mean TTFT and TBT over time, and their CDFs, on three workloads.

ServerlessLLM with section 3's TTL of five minutes. Numbers with the code's 30 s, under which alone
the gap between AzureCode's bursts evicts, are in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import (
    MEASURES,
    OVER_TIME_S,
    SYSTEMS,
    WORKLOADS,
    Floats,
    Run,
    curve,
    latency_cdfs,
    measured,
    over_time,
    plot_cdfs,
    row,
    runs,
    saved,
)  # fmt: skip
from plots.panels import legend_above
from plots.style import figure, log_scale

EXPERIMENTS = ("blitzscale_fig17",)
AGAINST = ("serverlessllm", "serverlessllm_30s", "allcache")
SHOWN = {"blitzscale": 2.4, "serverlessllm": 1.2, "allcache": 1.2}  # widths: what is below shows
OVER_TIME = ("requests/s", "mean TTFT (s)", "mean TBT (s)")
SHOWN_SEED = 0
SILENCE_S = 5  # lines are broken where nothing comes for longer


def table(points: Sequence[Point]) -> pd.DataFrame:
    found = runs(points)
    rows = measured(found)
    for against in AGAINST:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name])
    for name in ("mean TTFT", "mean TBT"):
        rows += saved(found, name, "allcache", MEASURES[name], "serverlessllm")
    rows += _best(pd.DataFrame(rows))
    for run in found:
        rows += _spikes(run)
        if run.seed == SHOWN_SEED and run.system in SHOWN:
            rows += _over_time(run)
    return pd.DataFrame([*rows, *latency_cdfs(found, SHOWN)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(3, 5, width=13, height=6.6)
    for i, (workload, title) in enumerate(WORKLOADS.items()):
        of_workload = rows[rows.workload == workload]
        panels = axes[5 * i : 5 * i + 5]
        for panel, name in zip(panels, OVER_TIME, strict=False):
            of_panel = of_workload[of_workload.quantity == name]
            for system, width in SHOWN.items():
                shown = of_panel[of_panel.system == system]
                if name == "requests/s":
                    panel.plot(shown.x, shown.value, color="0.3", lw=0.9)
                else:
                    label, colour, _, line = SYSTEMS[system]
                    panel.plot(shown.x, shown.value, color=colour, ls=line, lw=width, label=label)
            panel.set_title(title if name == "requests/s" else name)
        log_scale(panels[1], "y")
        panels[0].set_ylabel("requests/s")
        plot_cdfs(panels[3:], of_workload, SHOWN)
        for panel in panels[3:]:
            for line, width in zip(panel.lines, SHOWN.values(), strict=True):
                line.set_linewidth(width)
        for panel in panels:
            panel.set_xlabel("seconds" if i == len(WORKLOADS) - 1 else "")
    legend_above(made, axes[1:2], len(SHOWN))
    return made, (
        f"Means of {OVER_TIME_S:g} s: seed {SHOWN_SEED}; TTFT by arrival, TBT by when the token "
        "came. CDFs: all seeds. BurstGPT: 40 times as fast."
    )


def _over_time(run: Run) -> list[dict[str, Any]]:
    found = run.latencies
    series = [(found.arrival, found.ttft), (found.at, found.tbt)]
    rows = [
        each
        for name, values in zip(OVER_TIME[1:], series, strict=True)
        for each in curve(run, name, *_broken(*over_time(*values, OVER_TIME_S)))
    ]
    if run.system == "blitzscale":  # all have the same
        rows += curve(run, OVER_TIME[0], *over_time(found.arrival, step_s=OVER_TIME_S))
    return rows


def _broken(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """With nan in each silence."""
    silent = np.flatnonzero(np.diff(x) > SILENCE_S) + 1
    return np.insert(x, silent, x[silent] - OVER_TIME_S), np.insert(y, silent, np.nan)


def _best(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Our mean over the better of ServerlessLLM's and AllCache's, the highest of the workloads, and
    the least ratio of what is saved of TTFT to what is of TBT."""
    means = rows[rows.quantity.isin(["mean TTFT", "mean TBT"])]
    wide = means.pivot(index=["quantity", "seed", "workload"], columns="system", values="value")
    ratio = wide.blitzscale / wide[["serverlessllm", "allcache"]].min(axis=1)
    share = 1 - wide.blitzscale / wide.serverlessllm
    found = {
        f"{name} over the better one's, highest": ratio[name].groupby("seed").max()
        for name in ("mean TTFT", "mean TBT")
    }
    least = (share["mean TTFT"] / share["mean TBT"]).groupby("seed").min()
    found["share of TTFT saved over that of TBT, least"] = least
    ours = means[(means.system == "blitzscale") & (means.quantity == "mean TTFT")]
    scaled = ours.groupby("seed").mechanism.sum()
    about = {"workload": "all", "system": "blitzscale", "valid": bool(means.valid.all())}
    return [
        about | {"quantity": name, "seed": seed, "value": value, "mechanism": scaled[seed]}
        for name, values in found.items()
        for seed, value in values.items()
    ]


def _spikes(run: Run) -> list[dict[str, Any]]:
    """The second with the highest mean TTFT in each half of the window, from the window's start."""
    x, y = over_time(run.latencies.arrival, run.latencies.ttft)
    half = x.max() / 2
    parts = {"first": x < half, "second": x >= half}
    return [
        row(run, f"second of the highest mean TTFT, {name} half", float(x[part][y[part].argmax()]))
        for name, part in parts.items()
    ]
