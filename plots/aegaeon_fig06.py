"""Fig. 6: token-level schedules on two GPUs, drawn from runs of the three of them, and how each
fares under larger bursts.

The CSV has a row per run; aegaeon_fig06_gantt.csv what the charts show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from harness.experiments.points import Point
from plots.aegaeon import curve, events, frame, gantt, publish, requests, table
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig06",)
TITLES = {
    "prefill_first": "(a) prefill first",
    "decode_first": "(b) decoding first",
    "disaggregated": "(c) disaggregated",
}
DRAWN = {"factor": 8, "seed": 0}
SHOWN_S = 60.0  # requests arrive for so long


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = table(points)
    made, axes = figure(4, 1, width=9, height=8.6)
    drawn = rows[(rows.factor == DRAWN["factor"]) & (rows.seed == DRAWN["seed"])]
    each: Iterable[Any] = drawn.itertuples()
    paths = {row.schedule: points[row.Index].path for row in each}
    first = paths["disaggregated"]
    assert first is not None
    colours = dict(zip(sorted(requests(first).model.unique()), PALETTE, strict=False))
    charts = []
    for panel, schedule in zip(axes, TITLES, strict=False):
        path = paths[schedule]
        assert path is not None
        found = events(path, "run", "switch")
        of_run = drawn[drawn.schedule == schedule].iloc[0]
        gantt(panel, found, colours)
        panel.set(xlim=(0, SHOWN_S), xlabel="time (s)")
        ttft_s, tokens = of_run.ttft_mean_s, of_run.token
        panel.set_title(f"{TITLES[schedule]}: mean TTFT {ttft_s:.2f} s, {tokens:.1%} of tokens")
        charts.append(found.assign(schedule=schedule))
    _bursts(axes[3], rows)
    patches = [Patch(color=colour, label=model) for model, colour in colours.items()]
    patches.append(Patch(facecolor="white", edgecolor="k", hatch="/////", label="prefill"))
    patches.append(Patch(color="0.55", label="switch"))
    made.legend(handles=patches, loc="outside upper center", ncols=len(patches))
    stamp(
        made, points, "Charts: a burst of 8 times the rate from 20 to 30 s, seed 0; titles: share "
        "of tokens within the SLO (TTFT 10 s, TBT 100 ms). Below: mean and range of three seeds.",
    )  # fmt: skip
    spans = pd.concat(charts)[
        ["schedule", "instance", "kind", "model", "phase", "start_s", "end_s"]
    ]
    csv = folder / "aegaeon_fig06_gantt.csv"
    spans.to_csv(csv, index=False, float_format="%.6g", lineterminator="\n")
    return [*publish(made, rows, folder, Path(__file__).stem), csv]


def _bursts(panel: Axes, rows: pd.DataFrame) -> None:
    frame(panel, "Under larger bursts", "rate during the burst, in multiples of the rate around it")
    panel.set_xscale("log", base=2)
    for (schedule, title), colour, marker in zip(TITLES.items(), PALETTE, "sD^", strict=False):
        of_schedule = rows[rows.schedule == schedule]
        curve(
            panel, of_schedule, "factor", "token", "aegaeon",
            color=colour, label=title, marker=marker,
        )  # fmt: skip
    panel.set_xticks(
        sorted(rows.factor.unique()), [f"{f:g} x" for f in sorted(rows.factor.unique())]
    )
    panel.legend(loc="lower left", frameon=True, framealpha=0.9, edgecolor="none")
