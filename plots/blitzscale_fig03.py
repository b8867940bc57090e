"""Fig. 3: requests that violate section 3's SLOs, by the rate of a GPU at which instances load.

(a)-(d) TTFT and TBT, 72B on BurstGPT and 8B on AzureCode. A request violates its TBT by its mean.
Stop-the-world throughout; vertical lines: an SSD's, RDMA's and PCIe's rates, as in Fig. 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import WORKLOADS, row, runs
from plots.conf import spec
from plots.panels import Look, lines
from plots.runs import overrides
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("blitzscale_fig03",)
SLOS_S = {"burstgpt": (1.25, 0.2), "azure_code": (0.45, 0.15)}  # §3: TTFT, TBT
GIGABITS = {  # of a GPU's part of the parameters
    "burstgpt": spec("qwen2.5-72b").weight_bytes * 8e-9 / 4,
    "azure_code": spec("llama3-8b").weight_bytes * 8e-9,
}
LINKS = {"SSD": 10, "RDMA": 200, "PCIe": 256, "NVLink": 1600}  # Gbps, Fig. 5
LIMITS = {"burstgpt": (0.6, 0.4), "azure_code": (0.6,)}  # §3, §1: of requests that violate


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    done = [point for point in points if point.path is not None]
    for run, point in zip(runs(done), done, strict=True):
        ttft_s, tbt_s = SLOS_S[run.workload]
        late = run.latencies.ttft > ttft_s
        slow = run.latencies.tpot > tbt_s
        values = {f"violations, {name}": float(of.mean()) for name, of in
                  (("TTFT", late), ("TBT", slow), ("either", late | slow))}  # fmt: skip
        values["mean TTFT"] = float(run.latencies.ttft.mean())
        about = {
            "system": "allcache",
            "config_hash": point.config_hash(),
            "gbps": float(overrides(point)["pcie_bytes_per_s"]) * 8 / 1e9,
        }
        rows += [row(run, name, value) | about for name, value in values.items()]
    found = pd.DataFrame(rows)
    return pd.concat([found, pd.DataFrame(needed(found))], ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 4, width=12, height=3.2)
    shown = [(workload, name) for workload in SLOS_S for name in ("TTFT", "TBT")]
    looks = {"allcache": Look("AllCache", PALETTE[0], "o")}
    for panel, letter, (workload, name) in zip(axes, "abcd", shown, strict=True):
        of_panel = rows[(rows.workload == workload) & (rows.quantity == f"violations, {name}")]
        lines(panel, of_panel, "gbps", "value", looks, factor=100)
        log_scale(panel, "x")
        for link, gbps in LINKS.items():
            panel.axvline(gbps, color="0.5", lw=0.7, ls=":")
            panel.text(
                gbps, 100, link, rotation=90, fontsize=6, va="top",
                ha="left" if link == "PCIe" else "right",
            )  # fmt: skip
        limit_s = SLOS_S[workload][name == "TBT"]
        panel.set(
            title=f"({letter}) {name}, {WORKLOADS[workload].rpartition(',')[0]}", ylim=(-2, 102),
            xlabel="Gbps a GPU", ylabel=f"% of requests over {1000 * limit_s:g} ms",
        )  # fmt: skip
    return made, "AllCache's stop-the-world loading at each rate; mean and range of seeds."


def needed(table: pd.DataFrame) -> list[dict[str, object]]:
    """Of each workload and seed, the rate below which more than a limit of requests violate either
    SLO, and the load time that goes with it: by a straight line between points in log rate; nan
    where fewer do at every rate."""
    rows: list[dict[str, object]] = []
    either = table[table.quantity == "violations, either"]
    for (name, seed), found in either.groupby(["workload", "seed"]):
        workload = str(name)
        curve = found.sort_values("gbps")
        about = {"workload": workload, "system": "allcache", "seed": seed}
        about |= {"valid": bool(found.valid.all()), "mechanism": found.mechanism.sum()}
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
