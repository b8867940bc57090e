"""The simulator's signed error by load, one panel per latency, from parity.json.

python -m plots fidelity
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.fidelity.report import labelled
from plots.caption import caption
from plots.style import PALETTE, figure, save

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "tbt_s": "TBT", "e2e_s": "E2E"}
STATISTICS = {"p50": "-", "p90": "--", "p99": ":"}


def draw(parity: Path, out: Path) -> Path:
    found = json.loads(parity.read_text())
    limits = {(row["quantity"], row["statistic"]): row["limit"] for row in found["targets"]}
    workloads = list(dict.fromkeys(row["workload"] for row in found["rows"]))
    made, axes = figure(2, 2, width=9, height=6)
    for panel, (quantity, name) in zip(axes, LATENCIES.items(), strict=True):
        panel.set(title=name, xlabel="load (share of the knee)", ylabel="error (%)")
        panel.axhline(0, color="0.3", lw=0.8)
        for workload, colour in zip(workloads, PALETTE, strict=False):
            for statistic, style in STATISTICS.items():
                name = labelled(workload, found["synthetic"])
                label = f"{name} {statistic.upper()}"
                points = _points(found["rows"], (workload, quantity, statistic))
                panel.plot(*points, color=colour, ls=style, marker="o", ms=3, label=label)
        if limit := limits.get((quantity, "p50")):
            panel.axhspan(-limit, limit, color="0.9", zorder=0)
        panel.axvline(0.9, color="0.6", lw=0.8, ls=":")
    handles, names = axes[0].get_legend_handles_labels()
    made.legend(handles, names, ncols=len(workloads), loc="outside upper center", fontsize=7)
    machine = found["machine"]
    caption(made, "", [
        f"engine=sim against engine={found['engine']}", found["model"],
        f"{machine['cpu']}, {machine['num_cores']} cores",
        f"{found['num_requests']} requests a point", found["date_utc"][:10],
    ])  # fmt: skip
    return save(made, out)


def _points(
    rows: list[dict[str, Any]], key: tuple[str, str, str]
) -> tuple[list[float], list[float]]:
    """(loads, errors) where there is an error."""
    found = [
        row
        for row in rows
        if (row["workload"], row["quantity"], row["statistic"]) == key and row["error"] is not None
    ]
    return [row["load"] for row in found], [row["error"] for row in found]
