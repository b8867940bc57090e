"""What binds at each load, in replication, and how the comparison depends on what the paper leaves
open: memory for KV, cap on sequences, prefill policy, launch cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import DATASETS, caption, limits, numbers
from plots.style import PALETTE, figure

SENSITIVITY = "kunserve_table_limits"
EXPERIMENTS = (*(f"kunserve_fig10_{dataset}" for dataset in DATASETS), SENSITIVITY)
SETTINGS = {
    "as_is": "test bed as it is",
    "default_kv": "KV by vLLM's default",
    "seqs_1024": "1,024 sequences",
    "whole_prompts": "whole prompts",
    "cuda_graphs": "no launch cost",
    "spread_constants": "constants over all stages",
}
CAUSES = ("memory", "sequences", "compute")
RATE = 2.8  # of SENSITIVITY


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    points = [point for point in points if _shown(point)]
    rows = pd.DataFrame([_row(point) for point in points])
    made, axes = figure(1, 2, width=11, height=4.4)
    means = rows.groupby(["dataset", "setting", "rate", "system"], sort=False).mean(
        numeric_only=True
    )
    theirs = means.xs("llumnix_replication", level="system").reset_index()
    loads = theirs[theirs.setting == "as_is"]
    labels = [
        f"{DATASETS[str(r.dataset)].split(' ')[0]} {r.requests_per_s:.0f}/s, load {r.load:.2f}"
        for r in loads.itertuples()
    ]
    _bars(axes[0], loads, labels, "what requests wait for, by load")
    of_rate = theirs[(theirs.dataset == "burstgpt") & (theirs.rate == RATE)]
    mine = means.xs("kunserve", level="system").ttft_p99_s
    ours = [
        float(mine.loc[key])
        for key in zip(of_rate.dataset, of_rate.setting, of_rate.rate, strict=True)
    ]
    labels = [
        f"{SETTINGS[str(r.setting)]}\nP99 TTFT {r.ttft_p99_s:.1f} s, KunServe {own:.1f} s"
        for r, own in zip(of_rate.itertuples(), ours, strict=True)
    ]
    _bars(axes[1], of_rate, labels, f"BurstGPT, {of_rate.requests_per_s.mean():.0f}/s, by setting")
    handles, names = axes[0].get_legend_handles_labels()
    made.legend(handles, names, loc="outside upper center", ncols=3)
    caption(
        made, points, "Replication, time before first tokens: KV full (95 % of blocks), 256 seats "
        "taken, or neither (compute). Load: mean KV demand over memory.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)


def _shown(point: Point) -> bool:
    system = point.overrides["experiment/kunserve/system@_global_"]
    return system in ("kunserve", "llumnix_replication")


def _row(point: Point) -> dict[str, object]:
    sensitivity = point.experiment == SENSITIVITY
    dataset = "burstgpt" if sensitivity else point.experiment.removeprefix("kunserve_fig10_")
    base = {"dataset": dataset, "setting": "as_is", "rate": RATE}
    row = base | numbers(point)
    return row | (limits(point) if row["system"] == "llumnix_replication" else {})


def _bars(axes: Axes, rows: pd.DataFrame, labels: list[str], title: str) -> None:
    left = [0.0] * len(rows)
    for cause, colour in zip(CAUSES, PALETTE, strict=False):
        share = (100 * rows[f"wait_{cause}"]).tolist()
        axes.barh(range(len(rows)), share, left=left, color=colour, label=cause)
        left = [a + b for a, b in zip(left, share, strict=True)]
    axes.set_yticks(range(len(rows)), labels, fontsize=7)
    axes.set(title=title, xlabel="share of waiting (%)", xlim=(0, 100))
    axes.invert_yaxis()
