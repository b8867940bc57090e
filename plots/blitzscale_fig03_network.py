"""Fig. 3 (e) and (f): use of the network over time at the highest rate that a cluster sustains.

DistServe on all GPUs, of the rates that were tried when the capacity was found the highest that it
serves on time. Bytes between hosts, as in Fig. 22.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import OVER_TIME_S, WORKLOADS, curve, row, runs
from plots.blitzscale_fig22 import used_share
from plots.blitzscale_table_capacity import SEARCHES as CAPACITY
from plots.runs import table as of_runs
from plots.style import PALETTE, figure

SHOWN = {"burstgpt": "(e)", "azure_code": "(f)"}
EXPERIMENTS = tuple(f"blitzscale_capacity_{workload}" for workload in SHOWN)
SEARCHES = {name: CAPACITY[name] for name in EXPERIMENTS}
ON_TIME = 0.9  # of tokens, as the capacity is


def table(points: Sequence[Point]) -> pd.DataFrame:
    tried = [point for point in points if point.path is not None]
    found = of_runs(tried)
    rows: list[dict[str, Any]] = []
    for workload in SHOWN:
        of_workload = found[found.experiment == f"blitzscale_capacity_{workload}"]
        on_time = of_workload[of_workload.token >= ON_TIME]
        point = tried[on_time.index.to_numpy()[on_time.rate.to_numpy().argmax()]]
        (run,) = runs([point])
        run.workload, run.system = workload, "distserve_full"
        values = {
            "share free in the busiest second": 1 - float(used_share(run, "kv_move").max()),
            "factor on the trace's rate": float(on_time.rate.max()),
        }
        of_run = [row(run, name, value) for name, value in values.items()]
        share = used_share(run, "kv_move", OVER_TIME_S)
        of_run += curve(run, "share used", np.arange(len(share)) * OVER_TIME_S, share)
        rows += [each | {"config_hash": point.config_hash()} for each in of_run]
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=8, height=3)
    said = []
    for panel, (workload, letter) in zip(axes, SHOWN.items(), strict=True):
        shown = rows[(rows.workload == workload) & (rows.quantity == "share used")]
        title = WORKLOADS[workload].rpartition(",")[0]
        panel.plot(shown.x, 100 * shown.value, color=PALETTE[0], lw=1)
        panel.set(title=f"{letter} {title}", xlabel="seconds", ylabel="% of all NICs")
        panel.set_ylim(0, None)
        said.append(f"{100 * shown.value.max():.2g} %")
    return made, (
        "KV between hosts, DistServe on all GPUs at the highest rate tried that has 90 % of tokens "
        f"on time. The panels' scales differ: at most {said[0]} and {said[1]} are used."
    )
