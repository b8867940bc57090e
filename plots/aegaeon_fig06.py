"""Fig. 6: token-level schedules on two GPUs, drawn from runs of the three of them (a to c), and how
each fares under larger bursts (d)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.experiments.points import Point
from plots.aegaeon.attainment import attainment
from plots.panels import Look
from plots.runs import events
from plots.runs import table as of_runs
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig06",)
SCHEDULES = {
    "prefill_first": Look("(a) prefill first", PALETTE[0], "s"),
    "decode_first": Look("(b) decoding first", PALETTE[1], "D"),
    "disaggregated": Look("(c) disaggregated", PALETTE[2], "^"),
}
FACTOR, SEED = 8, 0  # of the charts
SHOWN_S = 60.0  # requests arrive for so long


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row per run (`panel` d), and one for each span of the charts."""
    runs = of_runs(points).assign(panel="d")
    charts = [
        _spans(points[i], schedule)
        for i, schedule in enumerate(runs.schedule)
        if runs.factor[i] == FACTOR and runs.seed[i] == SEED
    ]
    return pd.concat([runs, *charts])


def _spans(point: Point, schedule: str) -> pd.DataFrame:
    assert point.path is not None
    found = events(point.path, "run", "switch")
    shown = found.loc[found.start_s < SHOWN_S]
    columns = ["instance", "kind", "model", "phase", "start_s", "end_s"]
    return shown[columns].assign(
        panel=SCHEDULES[schedule].label[1], schedule=schedule, config_hash=point.config_hash()
    )


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(4, 1, width=9, height=8.6)
    runs, spans = rows[rows.panel == "d"], rows[rows.panel != "d"]
    colours = dict(zip(sorted(spans.model.unique()), PALETTE, strict=False))
    drawn = runs[(runs.factor == FACTOR) & (runs.seed == SEED)].set_index("schedule")
    for panel, (schedule, look) in zip(axes, SCHEDULES.items(), strict=False):
        _gantt(panel, spans[spans.schedule == schedule], colours)
        ttft_s, token = drawn.ttft_mean_s[schedule], drawn.token[schedule]
        panel.set_title(f"{look.label}: mean TTFT {ttft_s:.2f} s, {token:.1%} of tokens in time")
    factors = sorted(runs.factor.unique())
    label = "rate during the burst, in multiples of the rate around it"
    attainment(axes[3], runs, "(d) under larger bursts", "factor", label, SCHEDULES, by="schedule")
    axes[3].set_xscale("log", base=2)
    axes[3].set_xticks(factors, [f"{factor:g} x" for factor in factors])
    axes[3].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    patches = [Patch(color=colour, label=model) for model, colour in colours.items()]
    patches.append(Patch(facecolor="white", edgecolor="k", hatch="/////", label="prefill"))
    patches.append(Patch(color="0.55", label="switch"))
    made.legend(handles=patches, loc="outside upper center", ncols=len(patches))
    return made, (
        "(a) to (c): a burst of 8 times the rate from 20 to 30 s, seed 0; SLO: TTFT 10 s, TBT "
        "100 ms. (d): mean and range of the seeds; vertical: 90 % is met up to here."
    )


def _gantt(axes: Axes, spans: pd.DataFrame, colours: Mapping[str, Any]) -> None:
    """A row per instance: batches by model, prefills hatched, and switches between them."""
    instances = sorted(spans.instance.unique())
    for (instance, kind, model, phase), found in spans.groupby(
        ["instance", "kind", "model", "phase"], dropna=False
    ):
        place = instances.index(instance)
        bars = list(zip(found.start_s, found.end_s - found.start_s, strict=True))
        if kind == "switch":
            axes.broken_barh(bars, (place - 0.2, 0.4), color="0.55", lw=0)
            continue
        prefill = phase == "prefill"
        axes.broken_barh(
            bars, (place - 0.4, 0.8), facecolor=colours[str(model)], lw=0.3, zorder=2,
            edgecolor="k" if prefill else "white", hatch="/////" if prefill else None,
        )  # fmt: skip
    axes.set_yticks(range(len(instances)), [f"GPU {i}" for i in range(len(instances))])
    axes.set(ylim=(len(instances) - 0.5, -0.5), xlim=(0, SHOWN_S), xlabel="time (s)")
    axes.grid(False, axis="y")
