"""Fig. 11: over time, BurstGPT at the highest rate of Fig. 10: TTFT, KV, queue, throughput."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import SYSTEMS, caption
from plots.kunserve_timeline import throttled_s, timeline
from plots.style import figure, log_scale

EXPERIMENTS = ("kunserve_fig10_burstgpt",)
PANELS = {
    "ttft_s": "TTFT (s)", "demand": "KV demand / memory", "waiting": "waiting requests",
    "tokens_per_s": "tokens/s",
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    top = max(float(p.overrides["workload.scale.rate"]) for p in points)
    shown = [p for p in points if float(p.overrides["workload.scale.rate"]) == top]
    made, axes = figure(4, 1, width=9, height=8.2)
    rows = []
    for point in shown:
        system = point.overrides["experiment/kunserve/system@_global_"]
        found = timeline(point)
        about: dict[str, Any] = {
            "system": system,
            "seed": point.seed,
            "config_hash": point.config_hash(),
        }
        rows.append(pd.DataFrame([spike(found) | about]))
        if point.seed != 0:
            continue
        rows.append(found.assign(part="timeline", **about))
        label, colour, _, _ = SYSTEMS[system]
        for axis, (column, title) in zip(axes, PANELS.items(), strict=True):
            axis.plot(found.time_s, found[column], color=colour, label=label, lw=1.1)
            axis.set_ylabel(title)
        if system == "kunserve":
            axes[1].plot(found.time_s, found.capacity, color=colour, ls=":", lw=1.2)
    axes[1].axhline(1, color="0.4", lw=0.8, ls="--")
    log_scale(axes[0], "y")
    for axis in axes[:-1]:
        axis.sharex(axes[-1])
    axes[-1].set_xlabel("seconds")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=4)
    caption(
        made,
        shown,
        "Seed 0. TTFT by arrival, mean of 2 s. Dashed: all KV memory with nothing "
        "dropped; dotted: KunServe's.",
    )
    return publish(made, pd.concat(rows), folder, Path(__file__).stem)


def spike(found: pd.DataFrame) -> dict[str, object]:
    """TTFT at its highest after throttling over its mean before."""
    start_s = throttled_s(found)
    before = found[found.time_s < start_s].ttft_s.mean()
    after = found[found.time_s >= start_s].ttft_s.max() if np.isfinite(start_s) else np.nan
    return {"part": "spike", "throttled_s": start_s, "spike": after / before}
