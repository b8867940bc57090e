"""Fig. 18: latency and GPUs held, AzureConv and 24B, beside DistServe on all GPUs and on half.

A request violates its SLO where its TTFT or its mean TBT is over 5 times the mean. The paper does
not say whose mean: DistServe (full)'s and each system's own are both in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import (
    MEASURES,
    SYSTEMS,
    Latencies,
    Run,
    curve,
    held,
    held_over_time,
    latency_cdfs,
    measured,
    plot_cdfs,
    row,
    runs,
    saved,
)  # fmt: skip
from plots.panels import legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig17", "blitzscale_fig18")
SHOWN = ("distserve_full", "distserve_half", "serverlessllm", "blitzscale")
OTHERS = ("distserve_full", "distserve_half", "serverlessllm", "serverlessllm_30s")
HOLDING = ("serverlessllm", "blitzscale")
SHOWN_SEED = 0
FACTOR = 5.0  # §6.2
ROLES = {"prefill": PALETTE[2], "decode": PALETTE[1], "loading": "0.75"}


def table(points: Sequence[Point]) -> pd.DataFrame:
    found = runs([p for p in points if "azure_conv" in p.overrides.values()])
    rows = measured(found)
    for against in OTHERS:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name])
    rows += violations(found)
    for run in found:
        if run.seed == SHOWN_SEED and run.system in HOLDING:
            slots = held(run.path)
            for role in ROLES:
                rows += curve(run, f"GPUs held, {role}", *held_over_time(slots, [role]))
    return pd.DataFrame([*rows, *latency_cdfs(found, SHOWN)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 4, width=13, height=3.6)
    plot_cdfs(axes[:2], rows, SHOWN)
    for panel, system in zip(axes[2:], HOLDING, strict=True):
        _gpus(panel, rows[rows.system == system])
        panel.set(title=f"GPUs held, {SYSTEMS[system].label}", xlabel="seconds", ylabel="GPUs")
    legend_above(made, axes, len(SHOWN) + len(ROLES))
    return made, (
        f"AzureConv, Mistral-24B, TP 2. CDFs: all seeds; GPUs held: seed {SHOWN_SEED}. DistServe: "
        "11 prefills and 5 decodes, and 5 and 3."
    )


def violations(found: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Shares of requests, by both readings; and ours less DistServe (full)'s."""
    full = {run.seed: run for run in found if run.system == "distserve_full"}
    for run in found:
        for whose, mean in (
            ("DistServe (full)'s", full[run.seed].latencies),
            ("own", run.latencies),
        ):
            share = violating(run.latencies, mean)
            yield row(run, "violations", share, against=whose)
            if run.system == "blitzscale":
                theirs = violating(full[run.seed].latencies, full[run.seed].latencies)
                yield row(run, "violations less DistServe (full)'s", share - theirs, against=whose)


def violating(found: Latencies, mean: Latencies) -> float:
    late = found.ttft > FACTOR * mean.ttft.mean()
    slow = found.tpot > FACTOR * np.nanmean(mean.tpot)  # nan, of one token, is not
    return float((late | slow).mean())


def _gpus(panel: Axes, rows: pd.DataFrame) -> None:
    levels = [rows[rows.quantity == f"GPUs held, {role}"] for role in ROLES]
    panel.stackplot(
        levels[0].x, [level.value for level in levels], colors=list(ROLES.values()),
        labels=list(ROLES), lw=0,
    )  # fmt: skip
    panel.set_ylim(0, 33)
