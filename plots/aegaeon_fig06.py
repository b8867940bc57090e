"""Fig. 6: token-level schedules on two GPUs, drawn from runs of the three of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.patches import Patch

from harness.figures import Point
from plots.aegaeon import events, gantt, publish, requests, stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig06",)
TITLES = {
    "prefill_first": "(a) prefill first",
    "decode_first": "(b) decoding first",
    "disaggregated": "(c) disaggregated",
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(3, 1, width=9, height=6.2)
    rows = []
    models = requests(points[0].path).model.unique() if points[0].path else []
    colours = dict(zip(sorted(models), PALETTE, strict=False))
    for panel, point in zip(axes, points, strict=True):
        assert point.path is not None
        schedule = point.overrides["system.schedule"]
        found = events(point.path, "run", "switch", "load", "adopt")
        summary = json.loads((point.path / "summary.json").read_text())
        ttft_s, tokens = summary["ttft_s"]["mean"], summary["slo_attainment"]["token"]
        gantt(panel, found, colours)
        panel.set_title(f"{TITLES[schedule]}: mean TTFT {ttft_s:.2f} s, {tokens:.1%} of tokens")
        rows.append(found.assign(schedule=schedule))
    last_s = max(float(found.end_s.max()) for found in rows)
    for panel in axes:
        panel.set_xlim(0, last_s)
    axes[-1].set_xlabel("time (s)")
    patches = [Patch(color=colour, label=model) for model, colour in colours.items()]
    patches.append(Patch(facecolor="white", edgecolor="k", hatch="/////", label="prefill"))
    patches.append(Patch(color="0.55", label="switch"))
    made.legend(handles=patches, loc="outside upper center", ncols=len(patches))
    stamp(made, points, "Titles: share of tokens within the SLO (TTFT 10 s, TBT 100 ms).")
    table = pd.concat(rows)[["schedule", "instance", "kind", "model", "phase", "start_s", "end_s"]]
    return publish(made, table, folder, Path(__file__).stem)
