"""Signed errors of published GPU runs replayed, and the queue of runs known by the second.

python -m harness.fidelity gpu
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plots.caption import caption
from plots.style import PALETTE, figure, save

PANELS = {"e2e_mean_s": "E2E", "tpot_mean_s": "TPOT", "ttft_mean_s": "TTFT"}
BOUND_PCT = 50.0  # of the axis; beyond it a point lies on the edge


def draw(folder: Path, out: Path) -> Path:
    """Of points.csv and curves.csv in `folder`."""
    points = pd.read_csv(folder / "points.csv", keep_default_na=False, na_values=[""])
    curves = pd.read_csv(folder / "curves.csv")
    made, axes = figure(2, 3, width=11, height=6)
    for panel, (metric, name) in zip(axes[:3], PANELS.items(), strict=True):
        panel.axhline(0, color="0.3", lw=0.8)
        for colour, (label, part) in zip(PALETTE, points.groupby("set"), strict=False):
            held = part.held_out.astype(bool)
            busy = part.rate_per_s * part.e2e_mean_s / part.max_num_seqs
            error = part[f"{metric}_error_pct"].clip(-BOUND_PCT, BOUND_PCT)
            if held.any():
                told = f"{label}, held out"
                panel.scatter(busy[held], error[held], s=18, color=colour, label=told)
            if not held.all():
                panel.scatter(busy[~held], error[~held], s=18, facecolors="none",
                              edgecolors=colour, label=f"{label}, fitted")  # fmt: skip
        panel.set(title=name, xlabel="requests over max_num_seqs", ylabel="signed error (%)")
        panel.set(xscale="log", ylim=(-BOUND_PCT * 1.05, BOUND_PCT * 1.05))
    for panel, (run, part) in zip(axes[3:], curves.groupby("run", sort=False), strict=True):
        for colour, what in zip(PALETTE, ("running", "waiting"), strict=False):
            panel.plot(part.t_s, part[what], color=colour, lw=1, label=f"{what}, vLLM")
            panel.plot(part.t_s, part[f"sim_{what}"], color=colour, lw=1, ls="--",
                       label=f"{what}, simulated")  # fmt: skip
        panel.set(title=run, xlabel="time (s)", ylabel="requests")
    for panel in (axes[0], axes[3]):
        panel.legend(fontsize=6)
    caption(made, "", ["SIMULATED", "engine.profile=vllm_v1", "against published runs"])
    return save(made, out)
