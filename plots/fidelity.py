"""The simulator's signed errors: by load beside our engines, and of published runs on GPUs.

python -m plots fidelity
python -m harness.fidelity gpu
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from harness.fidelity.report import labelled
from harness.files import read_json
from plots.caption import caption
from plots.style import PALETTE, figure, save

LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "tbt_s": "TBT", "e2e_s": "E2E"}
STATISTICS = {"p50": "-", "p90": "--", "p99": ":"}
GPU_LATENCIES = {"e2e_mean_s": "E2E", "tpot_mean_s": "TPOT", "ttft_mean_s": "TTFT"}
BOUND_PCT = 50.0  # of the axis of GPUs' errors; beyond it a point lies on the edge


def draw(folder: Path) -> Path:
    """parity.png beside parity.json, a panel for each latency."""
    found = read_json(folder / "parity.json")
    limits = {(row["quantity"], row["statistic"]): row["limit"] for row in found["targets"]}
    rows = pd.DataFrame(found["rows"])
    made, axes = figure(2, 2, width=9, height=6)
    for panel, (quantity, title) in zip(axes, LATENCIES.items(), strict=True):
        panel.set(title=title, xlabel="load (share of the knee)", ylabel="error (%)")
        panel.axhline(0, color="0.3", lw=0.8)
        known = rows[(rows.quantity == quantity) & rows.error.notna()]
        for workload, colour in zip(rows.workload.unique(), PALETTE, strict=False):
            for statistic, style in STATISTICS.items():
                shown = known[(known.workload == workload) & (known.statistic == statistic)]
                label = f"{labelled(workload, found['synthetic'])} {statistic.upper()}"
                line = {"color": colour, "ls": style, "marker": "o", "ms": 3, "label": label}
                panel.plot(shown.load, shown.error, **line)
        if limit := limits.get((quantity, "p50")):
            panel.axhspan(-limit, limit, color="0.9", zorder=0)
        panel.axvline(0.9, color="0.6", lw=0.8, ls=":")
    handles, names = axes[0].get_legend_handles_labels()
    columns = rows.workload.nunique()
    made.legend(handles, names, ncols=columns, loc="outside upper center", fontsize=7)
    machine = found["machine"]
    caption(made, "", [
        f"engine=sim against engine={found['engine']}", found["model"],
        f"{machine['cpu']}, {machine['num_cores']} cores",
        f"{found['num_requests']} requests a point", found["date_utc"][:10],
    ])  # fmt: skip
    return save(made, folder / "parity.png")


def draw_gpu(folder: Path) -> Path:
    """gpu.png of points.csv and curves.csv beside it: errors of published GPU runs replayed, and
    the queue of runs known by the second."""
    points = pd.read_csv(folder / "points.csv", keep_default_na=False, na_values=[""])
    curves = pd.read_csv(folder / "curves.csv")
    made, axes = figure(2, 3, width=11, height=6)
    for panel, (metric, name) in zip(axes[:3], GPU_LATENCIES.items(), strict=True):
        panel.axhline(0, color="0.3", lw=0.8)
        for colour, (label, part) in zip(PALETTE, points.groupby("set"), strict=False):
            held = part.held_out.astype(bool)
            busy = part.rate_per_s * part.e2e_mean_s / part.max_num_seqs
            error = part[f"{metric}_error_pct"].clip(-BOUND_PCT, BOUND_PCT)
            for which, told, face in ((held, "held out", colour), (~held, "fitted", "none")):
                if which.any():
                    panel.scatter(
                        busy[which], error[which], s=18, facecolors=face, edgecolors=colour,
                        label=f"{label}, {told}",
                    )  # fmt: skip
        panel.set(title=name, xlabel="requests over max_num_seqs", ylabel="signed error (%)")
        panel.set(xscale="log", ylim=(-BOUND_PCT * 1.05, BOUND_PCT * 1.05))
    for panel, (run, part) in zip(axes[3:], curves.groupby("run", sort=False), strict=True):
        for colour, what in zip(PALETTE, ("running", "waiting"), strict=False):
            panel.plot(part.t_s, part[what], color=colour, lw=1, label=f"{what}, vLLM")
            label = f"{what}, simulated"
            panel.plot(part.t_s, part[f"sim_{what}"], color=colour, lw=1, ls="--", label=label)
        panel.set(title=run, xlabel="time (s)", ylabel="requests")
    for panel in (axes[0], axes[3]):
        panel.legend(fontsize=6)
    caption(made, "", ["SIMULATED", "engine.profile=vllm_v1", "against published runs"])
    return save(made, folder / "gpu.png")
