"""Fig. 1: what throttled memory does to TTFT: rate (a), KV memory (b), TTFT per input token with
recompute (c), KV swap (d) and migration (e)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import overrides, publish
from plots.kunserve import FULL, SYSTEMS, caption, requests
from plots.kunserve_timeline import timeline
from plots.style import figure, log_scale

EXPERIMENTS = ("kunserve_fig01",)
PANELS = {"vllm": "(c)", "vllm_kv_swap": "(d)", "llumnix_migration": "(e)"}
APART_S = 10.0  # two throttlings that are nearer are one


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(len(PANELS) + 2, 1, width=9, height=8.6)
    rows = []
    for point in points:
        system = overrides(point)["system"]
        shown = timeline(point)
        rows.append(spikes(point, shown) | {"system": system, "seed": point.seed})
        if point.seed != 0:
            continue
        label, colour, _, _ = SYSTEMS[system]
        assert point.path is not None
        found = requests(point.path)
        if system == "vllm":
            axes[0].plot(shown.time_s, shown.arrivals_per_s, color="0.3", lw=1.1)
            axes[1].plot(shown.time_s, shown.held, color=colour, label="held")
            axes[1].plot(shown.time_s, shown.demand, color=colour, ls=":", label="demand")
            axes[1].axhline(1, color="0.4", lw=0.8, ls="--")
            axes[1].legend(loc="upper right")
        axis = axes[2 + list(PANELS).index(system)]
        axis.scatter(found.arrival_s, found.ttft_s / found.prompt_tokens * 1e3, s=3, color=colour)
        axis.set_title(f"{PANELS[system]} {label}")
    axes[0].set(title="(a) rate", ylabel="requests/s")
    axes[1].set(title="(b) KV memory, vLLM", ylabel="of the memory")
    for axis in axes[2:]:
        axis.set_ylabel("TTFT per input\ntoken (ms)")
        log_scale(axis, "y")
    for axis in axes[:-1]:
        axis.sharex(axes[-1])
    axes[-1].set_xlabel("seconds")
    caption(
        made,
        points,
        "Seed 0. Mean KV demand is 1 / 2.1 of the memory. (d): one request out at a time.",
    )
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def spikes(point: Point, shown: pd.DataFrame) -> dict[str, Any]:
    """TTFT, also per input token, at most and P99 over P50; stays; throttlings."""
    assert point.path is not None
    found = requests(point.path)
    row: dict[str, Any] = {}
    for name, values in (
        ("ttft", found.ttft_s), ("per_token", found.ttft_s / found.prompt_tokens)
    ):  # fmt: skip
        half = values.median()
        row |= {f"{name}_max": values.max() / half, f"{name}_p99": values.quantile(0.99) / half}
    stay_s = found.last_s - found.arrival_s
    full_s = shown.time_s[shown.demand >= FULL].to_numpy()
    return row | {
        "stay_mean_s": stay_s.mean(), "stay_std_s": stay_s.std(), "stay_var": stay_s.var(),
        "stay_max_s": stay_s.max(), "load": shown.demand[shown.time_s <= 100].mean(),
        "throttlings": int(len(full_s) > 0) + int((np.diff(full_s) > APART_S).sum()),
        "rate_peak": shown.arrivals_per_s.max(),
    }  # fmt: skip
