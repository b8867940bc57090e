"""Fig. 17: request rate, mean TTFT and TBT of each second, and their CDFs, on three workloads.

ServerlessLLM with both TTLs: section 3's five minutes, and the code's 30 s, under which alone the
gap between AzureCode's bursts evicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.blitzscale import (
    MEASURES,
    PERCENT,
    SYSTEMS,
    WORKLOADS,
    Run,
    each_second,
    measured,
    row,
    runs,
    saved,
)  # fmt: skip
from plots.caption import stamp
from plots.style import figure, log_scale

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = ("serverlessllm", "serverlessllm_30s", "allcache", "blitzscale")
SHOWN_SEED = 0
SILENCE_S = 5  # lines are broken where nothing comes for longer


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = runs(points)
    rows = measured(found)
    for against in SHOWN[:-1]:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name])
    for name in ("mean TTFT", "mean TBT"):
        rows += saved(found, name, "allcache", MEASURES[name], "serverlessllm")
    rows += _best(rows)
    rows += [spike for run in found for spike in _spikes(run)]
    made, axes = figure(3, 5, width=14, height=7)
    for i, (workload, title) in enumerate(WORKLOADS.items()):
        panels = axes[5 * i : 5 * i + 5]
        for run in found:
            if run.workload == workload and run.seed == SHOWN_SEED:
                rows += _over_time(panels, run)
        for system in SHOWN:
            of_system = [r for r in found if (r.workload, r.system) == (workload, system)]
            rows += _cdfs(panels, of_system)
        panels[0].set(title=title, ylabel="requests/s")
        panels[1].set(title="mean TTFT (s)")
        panels[2].set(title="mean TBT (s)")
        panels[3].set(title="CDF of TTFT", ylabel="share")
        panels[4].set(title="CDF of TBT", ylabel="share")
    for panel in axes[10:13]:
        panel.set_xlabel("seconds")
    for panel in axes[13:]:
        panel.set_xlabel("latency (s)")
    handles, labels = axes[1].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=len(SHOWN))
    stamp(
        made, points, f"Means of each second: seed {SHOWN_SEED}; TTFT by arrival, TBT by when the "
        "token came. CDFs: all seeds. BurstGPT: 40 times as fast.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def _over_time(panels: Sequence[Axes], run: Run) -> list[dict[str, Any]]:
    label, colour, line = SYSTEMS[run.system]
    found = run.latencies
    series = {
        "requests/s": each_second(found.arrival),
        "mean TTFT of a second": each_second(found.arrival, found.ttft),
        "mean TBT of a second": each_second(found.at, found.tbt),
    }
    for panel, (name, (x, y)) in zip(panels, series.items(), strict=False):
        if name != "requests/s" or run.system == SHOWN[0]:
            style = {"color": "0.3"} if name == "requests/s" else {"color": colour, "ls": line}
            silent = np.flatnonzero(np.diff(x) > SILENCE_S) + 1
            shown = (np.insert(values, silent, np.nan) for values in (x, y))
            panel.plot(*shown, lw=0.9, label=label, **style)
        if name != "requests/s":
            log_scale(panel, "y")
    return [
        row(run, name, value, x=at)
        for name, (x, y) in series.items()
        for at, value in zip(x, y, strict=True)
    ]


def _cdfs(panels: Sequence[Axes], found: Sequence[Run]) -> list[dict[str, Any]]:
    if not found:
        return []
    label, colour, line = SYSTEMS[found[0].system]
    rows = []
    for panel, name in ((panels[3], "ttft"), (panels[4], "tbt")):
        values = np.quantile(np.concatenate([getattr(r.latencies, name) for r in found]), PERCENT)
        panel.plot(values, PERCENT, color=colour, ls=line, label=label)
        log_scale(panel, "x")
        rows += [
            row(found[0], f"quantile of {name.upper()}, all seeds", value, x=share)
            for share, value in zip(PERCENT, values, strict=True)
        ]
    return rows


def _best(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our mean over the better of ServerlessLLM's and AllCache's, the highest of the workloads, and
    the least ratio of what is saved of TTFT to what is of TBT."""
    means = pd.DataFrame(rows).query("quantity in ('mean TTFT', 'mean TBT')")
    wide = means.pivot_table(
        index=["quantity", "seed", "workload"], columns="system", values="value"
    )
    ratio = wide.blitzscale / wide[["serverlessllm", "allcache"]].min(axis=1)
    highest: Mapping[Any, float] = ratio.groupby(["quantity", "seed"]).max().to_dict()
    about = {"workload": "all", "system": "blitzscale", "valid": bool(means.valid.all())}
    found = [
        {
            "quantity": f"{name} over the better one's, highest",
            "seed": seed,
            "value": value,
            **about,
        }
        for (name, seed), value in highest.items()
    ]
    share = 1 - wide.blitzscale / wide.serverlessllm
    more = (share["mean TTFT"] / share["mean TBT"]).groupby("seed").min()
    found += [
        {"quantity": "share of TTFT saved over that of TBT, least", "seed": s, "value": v, **about}
        for s, v in more.items()
    ]
    return found


def _spikes(run: Run) -> list[dict[str, Any]]:
    """The second with the highest mean TTFT in each half of the window, from the window's start."""
    x, y = each_second(run.latencies.arrival, run.latencies.ttft)
    half = x.max() / 2
    parts = {"first": x < half, "second": x >= half}
    return [
        row(run, f"second of the highest mean TTFT, {name} half", float(x[part][y[part].argmax()]))
        for name, part in parts.items()
    ]
