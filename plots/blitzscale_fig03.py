"""Fig. 3: requests that violate section 3's SLOs, by the rate of a GPU at which instances load.

(a)-(d) TTFT and TBT, 72B on BurstGPT and 8B on AzureCode. A request violates its TBT by its mean.
Stop-the-world throughout; vertical lines: an SSD's, RDMA's and PCIe's rates, as in Fig. 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import of_seeds, overrides, publish
from plots.aegaeon_table1 import spec
from plots.blitzscale import WORKLOADS, runs
from plots.caption import stamp
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("blitzscale_fig03",)
SLOS_S = {"burstgpt": (1.25, 0.2), "azure_code": (0.45, 0.15)}  # §3: TTFT, TBT
GIGABITS = {  # of a GPU's part of the parameters
    "burstgpt": spec("qwen2.5-72b").weight_bytes * 8e-9 / 4,
    "azure_code": spec("llama3-8b").weight_bytes * 8e-9,
}
LINKS = {"SSD": 10, "RDMA": 200, "PCIe": 256, "NVLink": 1600}  # Gbps, Fig. 5
LIMITS = {"burstgpt": (0.6, 0.4), "azure_code": (0.6,)}  # §3, §1: of requests that violate


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    done = [point for point in points if point.path is not None]
    for run, point in zip(runs(done), done, strict=True):
        ttft_s, tbt_s = SLOS_S[run.workload]
        late = run.latencies.ttft > ttft_s
        slow = run.latencies.tpot > tbt_s
        about = {"workload": run.workload, "seed": run.seed, "valid": run.valid,
                 "config_hash": point.config_hash()}  # fmt: skip
        gbps = float(overrides(point)["pcie_bytes_per_s"]) * 8 / 1e9
        shares = {"TTFT": late, "TBT": slow, "either": late | slow}
        rows += [
            about | {"quantity": f"violations, {name}", "gbps": gbps, "value": float(of.mean())}
            for name, of in shares.items()
        ]
        mean = about | {"quantity": "mean TTFT", "gbps": gbps}
        rows.append(mean | {"value": float(run.latencies.ttft.mean())})
    table = pd.DataFrame(rows)
    made, axes = figure(1, 4, width=11, height=3.2)
    for i, workload in enumerate(SLOS_S):
        for j, name in enumerate(("TTFT", "TBT")):
            panel = axes[2 * i + j]
            of_panel = table[
                (table.workload == workload) & (table.quantity == f"violations, {name}")
            ]
            shown = of_seeds(of_panel, "gbps", "value")
            panel.plot(shown.gbps, 100 * shown["mean"], marker="o", color=PALETTE[0])
            panel.fill_between(shown.gbps, 100 * shown["min"], 100 * shown["max"], alpha=0.2)
            log_scale(panel, "x")
            for link, gbps in LINKS.items():
                panel.axvline(gbps, color="0.5", lw=0.7, ls=":")
                panel.text(gbps, 100, link, rotation=90, fontsize=6, ha="right", va="top")
            limit_s = SLOS_S[workload][j]
            panel.set(
                title=f"{name}, {WORKLOADS[workload].rpartition(',')[0]}", ylim=(-2, 102),
                xlabel="Gbps a GPU", ylabel=f"% over {1000 * limit_s:g} ms",
            )  # fmt: skip
    rows += needed(table)
    stamp(made, points, "AllCache's stop-the-world loading at each rate; mean and range of seeds.")
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def needed(table: pd.DataFrame) -> list[dict[str, object]]:
    """Of each workload and seed, the rate below which more than a limit of requests violate either
    SLO, and the load time that goes with it: by a straight line between points in log rate; nan
    where fewer do at every rate."""
    rows: list[dict[str, object]] = []
    either = table[table.quantity == "violations, either"]
    for (name, seed), found in either.groupby(["workload", "seed"]):
        workload = str(name)
        curve = found.sort_values("gbps")
        about = {"workload": workload, "seed": seed, "valid": bool(found.valid.all())}
        for limit in LIMITS[workload]:
            over = curve.value.to_numpy() > limit
            gbps = np.nan
            if over.any() and not over.all():
                last = int(np.flatnonzero(over)[-1])
                if last + 1 < len(curve):
                    pair = curve.iloc[[last + 1, last]]
                    gbps = float(np.exp(np.interp(limit, pair.value, np.log(pair.gbps))))
            values = {
                f"Gbps below which over {100 * limit:.0f} % violate": gbps,
                f"seconds of load above which over {100 * limit:.0f} % violate": (
                    GIGABITS[workload] / gbps
                ),
            }
            rows += [about | {"quantity": name, "value": value} for name, value in values.items()]
    return rows
