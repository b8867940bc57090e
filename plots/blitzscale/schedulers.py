"""What decides in a live pair, in the running system: the schedulers of section 5.2 end to end."""

from __future__ import annotations

from itertools import product

import pandas as pd

from plots.blitzscale.runs import MEASURES, WORKLOADS, runs
from plots.figure import Panels, Points, picture
from plots.panels import over_seeds
from plots.style import PALETTE

STOP = "stop-the-world"
DECIDING = {
    "ilp_free": "ILP-free", "ilp": "ILP", "best_effort": "best effort", "overlap": "overlap",
    STOP: "stop the\nworld",
}  # fmt: skip
SHOWN = ("burstgpt", "azure_code")
LATENCIES = ("mean TTFT", "P95 TTFT")


def by_scheduler(points: Points) -> pd.DataFrame:
    rows = []
    for run in runs(points, ("blitzscale", "multicast")):
        if run.workload in SHOWN:
            system = run.config()["system"]
            scheduler = system["scheduler"] if system["zigzag"] else STOP
            # Live: scale-ups that sent KV before they were complete.
            if scheduler not in ("overlap", STOP):
                run.mechanism = float(run.scale_ups().served.astype(bool).sum())
            values = {name: MEASURES[name](run) for name in LATENCIES}
            rows += run.rows(values, scheduler=scheduler, config_hash=run.point.config_hash())
    found = pd.DataFrame(rows)
    keys = ["quantity", "workload", "seed"]
    ours = found[found.scheduler == "ilp_free"].set_index(keys).value
    ratio = [value / ours[*key] for *key, value in found[[*keys, "value"]].to_numpy()]
    over = found.assign(value=ratio, quantity=found.quantity + " over ILP-free")
    return pd.concat([found, over], ignore_index=True)


@picture(
    "blitzscale_scheduler", by_scheduler,
    ("blitzscale_scheduler", "blitzscale_fig17", "blitzscale_fig20"), shape=(1, 4), size=(13, 3),
)  # fmt: skip
def schedulers(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 5.2's schedulers in the running system, an ablation that the paper does not have:
    only what decides in a live pair differs. ILP: 40 ms are charged for each program. Stop the
    world: no live pair, as Fig. 20's +Multicast."""
    for panel, (workload, name) in zip(axes, product(SHOWN, LATENCIES), strict=True):
        of_panel = rows[(rows.workload == workload) & (rows.quantity == name)]
        each = over_seeds(of_panel, "scheduler", "value").loc[list(DECIDING)]
        error = [each.below, each.above]
        panel.bar(range(len(DECIDING)), each["mean"], color=PALETTE[: len(DECIDING)], yerr=error)
        panel.set_xticks(range(len(DECIDING)), list(DECIDING.values()), fontsize=6)
        panel.set(title=WORKLOADS[workload].rpartition(",")[0], ylabel=f"{name} (s)")
        panel.grid(False, axis="x")
    return "Mean and range of seeds, at half of the capacity by requests."
