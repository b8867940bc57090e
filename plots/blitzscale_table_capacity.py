"""Section 6: the serving capacity that mean request rates are half of, found once a workload.

Capacity: the largest factor on the trace's rate up to which DistServe on all GPUs has 90 % of
tokens on time; under colocation (§6.4) vLLM. The paper does not say what it means by the word.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.claims.expressions import crossing
from harness.experiments.capacity_search import Search
from harness.experiments.compose import composed
from harness.experiments.points import Point
from plots.blitzscale import WORKLOADS
from plots.runs import table as of_runs
from plots.style import text_table

SHOWN = WORKLOADS | {"burstgpt_7b": "BurstGPT, Llama2-7B, cluster B, vLLM"}  # Fig. 24's
EVALUATION = dict.fromkeys(WORKLOADS, "blitzscale_fig17") | {"burstgpt_7b": "blitzscale_fig24"}
EXPERIMENTS = tuple(f"blitzscale_capacity_{workload}" for workload in SHOWN)
RATE = "workload.scale.rate"
SEARCHES = {
    "blitzscale_capacity_burstgpt": Search(RATE, tuple(float(n) for n in range(8, 33, 2))),
    "blitzscale_capacity_azure_conv": Search(RATE, tuple(float(n) for n in range(8, 17))),
    "blitzscale_capacity_azure_code": Search(RATE, tuple(n / 4 for n in range(6, 13))),
    "blitzscale_capacity_burstgpt_7b": Search(RATE, tuple(float(n) for n in range(32, 57, 2))),
}
HEADINGS = ["workload", "factor at capacity", "evaluated at", "evaluated / capacity"]


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = of_runs(points)
    rows["workload"] = rows.experiment.str.removeprefix("blitzscale_capacity_")
    found = []
    for experiment, workload in zip(EXPERIMENTS, SHOWN, strict=True):
        capacity = float(crossing(rows[rows.workload == workload], "rate", "token"))
        used = evaluated_at(workload)
        about = {"quantity": "mean rate over capacity", "workload": workload, "seed": 0}
        about |= {"experiment": experiment, "capacity": capacity, "used": used}
        found.append(about | {"value": used / capacity})
    return pd.concat([rows, pd.DataFrame(found)], ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows[rows.quantity == "mean rate over capacity"]
    cells = [
        [SHOWN[workload], *(f"{value:.3g}" for value in values)]
        for workload, *values in shown[["workload", "capacity", "used", "value"]].to_numpy()
    ]
    title = "Capacity of each cluster, as a factor on the trace's rate"
    said = "90 % of tokens on time, on all GPUs without scaling."
    return text_table(cells, HEADINGS, title), said


def evaluated_at(workload: str) -> float:
    """The factor of Fig. 17's runs, or Fig. 24's."""
    group = f"experiment/blitzscale/workload@_global_={workload}"
    config = composed(EVALUATION[workload], (group,)).configured([group])
    return float(config.workload.scale.rate)
