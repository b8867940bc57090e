"""Fig. 4: TPOT and TTFT of Llama-3.1-8B on an A100 by rate: at the stable rate and above it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import overrides, requests
from plots.panels import Look, legend_above, lines
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("aqua_rates_high",)
RATES = {
    2.0: Look("2 requests/s", PALETTE[2]), 2.5: Look("2.5 requests/s", PALETTE[1]),
    3.0: Look("3 requests/s", PALETTE[3]),
}  # fmt: skip
SHOWN, SHOWN_SEED = 300, 100  # requests; the runs have 1,500
SLA_S = 1.0


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row for each run, and one for each request of the seed that is drawn."""
    tables = []
    for point in points:
        words = overrides(point)
        if words["served"] != "llama8b_a100" or float(words["rate_per_s"]) not in RATES:
            continue
        named: dict[str, Any] = {
            "rate_per_s": float(words["rate_per_s"]), "seed": point.seed,
            "config_hash": point.config_hash(),
        }  # fmt: skip
        rows = requests(point)[:SHOWN][["order", "ttft_s", "tpot_s"]]
        means = rows[["ttft_s", "tpot_s"]].mean().to_frame().T
        tables.append(means.assign(row="mean", **named))
        if point.seed == SHOWN_SEED:
            tables.append(rows.assign(row="request", **named))
    return pd.concat(tables, ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows[rows.row == "request"]
    made, axes = figure(1, 2, width=9, height=3.6)
    titles = {"tpot_s": "(a) TPOT", "ttft_s": "(b) TTFT (dashed: the SLA)"}
    for panel, (column, title) in zip(axes, titles.items(), strict=True):
        lines(panel, shown, "order", column, RATES, by="rate_per_s")
        panel.set(title=title, xlabel="request, in order of arrival", ylabel="seconds")
    axes[1].axhline(SLA_S, color="0.4", lw=0.8, ls="--")
    log_scale(axes[1], "y")
    legend_above(made, axes, 3)
    return made, (
        f"Llama-3.1-8B, ShareGPT, chunks of 512; the first {SHOWN} requests, seed {SHOWN_SEED}."
    )
