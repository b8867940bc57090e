"""Fig. 3 (e) and (f): use of the network over time at the highest rate that a cluster sustains.

DistServe on all GPUs, of the rates that were tried when the capacity was found the highest that it
serves on time. Bytes between hosts, as in Fig. 22.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish, table
from plots.blitzscale import WORKLOADS, row, runs
from plots.blitzscale_fig22 import used_share
from plots.blitzscale_table_capacity import SEARCHES as CAPACITY
from plots.caption import stamp
from plots.style import PALETTE, figure

SHOWN = ("burstgpt", "azure_code")
EXPERIMENTS = tuple(f"blitzscale_capacity_{workload}" for workload in SHOWN)
SEARCHES = {name: CAPACITY[name] for name in EXPERIMENTS}
ON_TIME = 0.9  # of tokens, as the capacity is


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    tried = [point for point in points if point.path is not None]
    found = table(tried)
    rows: list[dict[str, Any]] = []
    used = []
    made, axes = figure(1, 2, width=8, height=3)
    for panel, workload in zip(axes, SHOWN, strict=True):
        of_workload = found[found.experiment == f"blitzscale_capacity_{workload}"]
        on_time = of_workload[of_workload.token >= ON_TIME]
        point = tried[on_time.index.to_numpy()[on_time.rate.to_numpy().argmax()]]
        (run,) = runs([point])
        run.workload = workload
        used.append(point)
        share = used_share(run, "kv_move")
        panel.fill_between(np.arange(len(share)), 100 * share, color=PALETTE[0], lw=0)
        panel.set(
            title=WORKLOADS[workload].rpartition(",")[0], xlabel="seconds", ylabel="% of NICs",
            ylim=(0, 100),
        )  # fmt: skip
        rows += [
            row(run, "share used", float(value), x=float(at)) for at, value in enumerate(share)
        ]
        rows.append(row(run, "share free in the busiest second", 1 - float(share.max())))
        rows.append(row(run, "factor on the trace's rate", float(on_time.rate.max())))
    stamp(
        made,
        used,
        "DistServe on all GPUs at the highest rate tried that has 90 % of tokens on time.",
    )
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)
