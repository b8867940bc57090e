"""Fig. 4: TPOT and TTFT of Llama-3.1-8B on an A100 by rate: at the stable rate and above it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import overrides, requests
from plots.caption import stamp
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("aqua_rates_high",)
RATES = {"2": PALETTE[2], "2.5": PALETTE[1], "3": PALETTE[3]}
SHOWN = 300  # requests; the runs have 1,500


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    tables, used = [], []
    for point in points:
        words = overrides(point)
        if words["served"] == "llama8b_a100" and words["rate_per_s"] in RATES:
            rows = requests(point).drop(columns=["token_times_s", "model"])
            rows = rows.assign(seed=point.seed, config_hash=point.config_hash())
            tables.append(rows.assign(rate_per_s=float(words["rate_per_s"])))
            used.append(point)
    rows = pd.concat(tables, ignore_index=True)
    made, axes = figure(1, 2, width=9, height=3.6)
    for text, colour in RATES.items():
        run = rows[(rows.rate_per_s == float(text)) & (rows.seed == 100)].iloc[:SHOWN]
        axes[0].plot(run.order, run.tpot_s, color=colour, lw=1, label=f"{text} requests/s")
        axes[1].plot(run.order, run.ttft_s, color=colour, lw=1)
    axes[1].axhline(1.0, color="0.4", lw=0.8, ls="--")
    for panel, name in zip(axes, ("(a) TPOT", "(b) TTFT (dashed: the SLA)"), strict=True):
        panel.set(title=name, xlabel="request, in order of arrival", ylabel="seconds")
    log_scale(axes[1], "y")
    made.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    stamp(
        made,
        used,
        "Llama-3.1-8B, ShareGPT, chunks of 512; the first 300 requests, seed 100.",
    )
    sums = rows[rows.order <= SHOWN].groupby(["rate_per_s", "seed", "config_hash"], as_index=False)
    means = sums[["ttft_s", "tpot_s"]].mean().assign(row="mean")
    return publish(
        made, pd.concat([means, rows.assign(row="request")]), folder, Path(__file__).stem
    )
