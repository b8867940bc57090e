"""Fig. 10: end to end, 14B: TTFT and TBT by rate, violations of the SLO, on three datasets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import DATASETS, caption, compared, judged, limits, lines, numbers
from plots.style import figure, log_scale

EXPERIMENTS = tuple(f"kunserve_fig10_{dataset}" for dataset in DATASETS)
PANELS = {  # title: (column, factor)
    "P50 TTFT (s)": ("ttft_p50_s", 1.0),
    "P99 TTFT (s)": ("ttft_p99_s", 1.0),
    "P50 TBT (ms)": ("tbt_p50_s", 1e3),
    "P99 TBT (ms)": ("tbt_p99_s", 1e3),
    "SLO violated (%)": ("violating", 100.0),
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = pd.DataFrame(
        [numbers(p) | {"dataset": p.experiment.removeprefix("kunserve_fig10_")} for p in points]
    )
    of_replication = rows.system == "llumnix_replication"
    causes = pd.DataFrame({i: limits(points[i]) for i in rows[of_replication].index}).T
    rows = compared(judged(rows.join(causes), points, ["dataset"]), ["dataset"])
    rows["rate_x"] = rows.groupby(["dataset", "rate"]).requests_per_s.transform("mean")
    made, axes = figure(len(DATASETS), len(PANELS), width=12, height=6.6)
    for i, (dataset, title) in enumerate(DATASETS.items()):
        of_dataset = rows[rows.dataset == dataset]
        for axis, (name, (column, factor)) in zip(axes[5 * i :], PANELS.items(), strict=False):
            lines(axis, of_dataset, column, factor)
            axis.set_title(name if i == 0 else "")
            if column.startswith("ttft"):
                log_scale(axis, "y")
            else:
                axis.set_ylim(bottom=0)
            axis.sharex(axes[5 * i])
        axes[5 * i].set_ylabel(title, fontweight="bold", fontsize=8)
    for axis in axes[-5:]:
        axis.set_xlabel("requests/s, four instances")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=4)
    caption(
        made, points, "Mean and range of seeds. TBT: a request's mean. SLO: 5 x P50 of replication "
        "at the lowest rate. KV: 33 GB an instance.",
    )  # fmt: skip
    return publish(made, rows.drop(columns="rate_x"), folder, Path(__file__).stem)
