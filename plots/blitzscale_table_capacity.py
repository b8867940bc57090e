"""Section 6: the serving capacity that mean request rates are half of, found once a workload.

Capacity: the largest factor on the trace's rate up to which DistServe on all GPUs has 90 % of
tokens on time; under colocation (§6.4) vLLM. The paper does not say what it means by the word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.claims.expressions import crossing
from harness.experiments.capacity_search import Search
from harness.experiments.compose import composed
from harness.experiments.points import Point
from plots.aegaeon import publish, table
from plots.blitzscale import WORKLOADS
from plots.caption import stamp
from plots.style import figure

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


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = table(points)
    rows["workload"] = rows.experiment.str.removeprefix("blitzscale_capacity_")
    found: list[dict[str, Any]] = []
    for workload in SHOWN:
        capacity = float(crossing(rows[rows.workload == workload], "rate", "token"))
        used = evaluated_at(workload)
        about = {"quantity": "mean rate over capacity", "workload": workload, "seed": 0}
        found.append(about | {"capacity": capacity, "used": used, "value": used / capacity})
    made, (axes,) = figure(1, 1, width=8, height=2.2)
    axes.axis("off")
    cells = [
        [
            SHOWN[each["workload"]],
            *(f"{each[key]:.3g}" for key in ("capacity", "used", "value")),
        ]
        for each in found
    ]
    axes.table(cells, colLabels=HEADINGS, loc="center", cellLoc="center", edges="horizontal")
    axes.set_title("Capacity of each cluster, as a factor on the trace's rate")
    stamp(made, points, "90 % of tokens on time, on all GPUs without scaling.")
    both = pd.concat([rows, pd.DataFrame(found)], ignore_index=True)
    return publish(made, both, folder, Path(__file__).stem)


def evaluated_at(workload: str) -> float:
    """The factor of Fig. 17's runs, or Fig. 24's."""
    group = f"experiment/blitzscale/workload@_global_={workload}"
    config = composed(EVALUATION[workload], (group,)).configured([group])
    return float(config.workload.scale.rate)
