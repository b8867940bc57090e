"""Fig. 1: what throttled memory does to TTFT: rate (a), KV memory (b), TTFT per input token with
recompute (c), KV swap (d) and migration (e)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import FULL, SYSTEMS, requests, system
from plots.kunserve_timeline import timeline, timeline_rows
from plots.style import figure, log_scale

EXPERIMENTS = ("kunserve_fig01",)
PANELS = {"vllm": "(c)", "vllm_kv_swap": "(d)", "llumnix_migration": "(e)"}
APART_S = 10.0  # two throttlings that are nearer are one


def table(points: Sequence[Point]) -> pd.DataFrame:
    runs = [spikes(point) | {"system": system(point), "seed": point.seed} for point in points]
    return pd.concat([pd.DataFrame(runs), timeline_rows(points, system)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(len(PANELS) + 2, 1, width=9, height=8.6)
    shown = rows[rows.series == "vllm"]
    axes[0].plot(shown.time_s, shown.arrivals_per_s, color="0.3", lw=1.1)
    axes[0].set(title="(a) rate", ylabel="requests/s")
    axes[1].plot(shown.time_s, shown.demand, color="0.3", lw=1.1)
    axes[1].axhline(1, color="0.4", lw=0.8, ls="--")
    axes[1].set(title="(b) KV demand, vLLM", ylabel="of the memory", ylim=(0, None))
    for panel, (name, letter) in zip(axes[2:], PANELS.items(), strict=True):
        shown, look = rows[rows.series == name], SYSTEMS[name]
        highest = 1e3 * shown.ttft_per_token_max_s
        panel.plot(shown.time_s, highest, ".", color=look.colour, ms=4, label="highest of 0.5 s")
        panel.plot(shown.time_s, 1e3 * shown.ttft_per_token_s, color="0.3", lw=0.9,
                   label="mean of 2 s")  # fmt: skip
        panel.set(title=f"{letter} {look.label}", ylabel="TTFT per input\ntoken (ms)")
        log_scale(panel, "y")
        panel.sharey(axes[2])
    for panel in axes[:-1]:
        panel.sharex(axes[-1])
    axes[-1].set_xlabel("seconds")
    return made, (
        "Azure code arrivals, seed 0. Dashed: all KV memory, about 2.1 x the mean demand. Dots: "
        "highest TTFT per input token of 0.5 s of arrivals; lines: mean of 2 s. (d): one request "
        "out at a time."
    )


def spikes(point: Point) -> dict[str, Any]:
    """TTFT, also per input token, at most and P99 over P50; stays; throttlings."""
    found, shown = requests(point.path), timeline(point)
    row: dict[str, Any] = {"config_hash": point.config_hash()}
    for name, values in (
        ("ttft", found.ttft_s), ("per_token", found.ttft_s / found.prompt_tokens)
    ):  # fmt: skip
        half = values.median()
        row |= {f"{name}_max": values.max() / half, f"{name}_p99": values.quantile(0.99) / half}
    stay_s = found.last_s - found.arrival_s
    full_s = shown.time_s[shown.demand >= FULL].to_numpy()
    throttlings = int(len(full_s) > 0) + int((np.diff(full_s) > APART_S).sum())
    return row | {
        "stay_mean_s": stay_s.mean(), "stay_std_s": stay_s.std(), "stay_var": stay_s.var(),
        "stay_max_s": stay_s.max(), "load": shown.demand[shown.time_s <= 100].mean(),
        "throttlings": throttlings, "mechanism": throttlings,  # what Fig. 1 is about
        "rate_peak": shown.arrivals_per_s.max(),
    }  # fmt: skip
