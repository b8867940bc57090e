"""Fig. 12: end to end, 70B: TTFT and TBT by rate, violations, and violations by SLO scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.kunserve import SYSTEMS, caption, compared, judged, limits, lines, numbers, requests
from plots.kunserve_fig10 import PANELS
from plots.style import figure, log_scale

EXPERIMENTS: tuple[str, ...] = ("kunserve_fig12",)
SCALES = np.geomspace(0.2, 8.0, 25)  # of the SLO


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    return drawn(points, folder, Path(__file__).stem)


def drawn(points: Sequence[Point], folder: Path, name: str) -> list[Path]:
    """Fig. 13 is the same of another model."""
    rows = pd.DataFrame([numbers(point) for point in points])
    of_replication = rows.system == "llumnix_replication"
    causes = pd.DataFrame({i: limits(points[i]) for i in rows[of_replication].index}).T
    rows = compared(judged(rows.join(causes), points, ["model"]), ["model"])
    rows["rate_x"] = rows.groupby("rate").requests_per_s.transform("mean")
    made, axes = figure(2, 3, width=9.5, height=5.4)
    for axis, (title, (column, factor)) in zip(axes, PANELS.items(), strict=False):
        lines(axis, rows, column, factor)
        axis.set(title=title, xlabel="requests/s, four instances")
        if column.startswith("ttft"):
            log_scale(axis, "y")
        else:
            axis.set_ylim(bottom=0)
    top = rows[rows.top]
    scaled = by_scale(top, points)
    for system, of_system in scaled.groupby("system"):
        label, colour, _, style = SYSTEMS[str(system)]
        mean = of_system.groupby("scale").violating.mean()
        axes[5].plot(mean.index, 100 * mean, color=colour, ls=style, label=label)
    axes[5].set(title="violated (%), highest rate", xlabel="scale of the SLO")
    log_scale(axes[5], "x")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=4)
    memory = rows[rows.system == "llumnix_replication"].wait_memory.groupby(rows.rate).mean()
    shares = ", ".join(f"{100 * share:.0f}" for share in memory)
    caption(
        made, points, "SLO: 5 x P50 of replication at the lowest rate. KV (168,000 tokens) "
        f"is full for {shares} % of its waiting, by rate.",
    )  # fmt: skip
    out = pd.concat([rows.drop(columns="rate_x"), scaled.assign(part="scale")])
    return publish(made, out, folder, name)


def by_scale(rows: pd.DataFrame, points: Sequence[Point]) -> pd.DataFrame:
    """Share of requests that violate SCALES times the SLO of each of `rows`."""
    paths = {key_of(p): p.path for p in points}
    made = []
    for row in rows.itertuples():
        path = paths[str(row.experiment), str(row.system), float(str(row.rate)), int(str(row.seed))]
        assert path is not None
        found = requests(path)
        for scale in SCALES:
            late = (found.ttft_s > scale * row.slo_ttft_s) | (found.tbt_s > scale * row.slo_tbt_s)
            made.append(
                {"experiment": row.experiment, "system": row.system, "seed": row.seed,
                 "scale": scale, "violating": late.mean()}
            )  # fmt: skip
    return pd.DataFrame(made)


def key_of(point: Point) -> tuple[str, str, float, int]:
    system = point.overrides["experiment/kunserve/system@_global_"]
    rate = float(point.overrides["workload.scale.rate"])
    return point.experiment, system, rate, point.seed
