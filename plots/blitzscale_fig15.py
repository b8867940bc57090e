"""Figs. 9 (c) and 15: the schedulers as Gantt charts, in layer times.

The pure schedulers on the paper's example: seven layers, six layer times to load one, six batches
from when the first layer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.style import PALETTE, figure
from systems.blitzscale.ilp import ilp
from systems.blitzscale.schedulers import best_effort, ilp_free, overlap
from systems.blitzscale.timeline import PairTimes, Timeline, replay

EXPERIMENTS: tuple[str, ...] = ()
LAYERS, LOAD, BATCHES = 7, 6.0, 6
SCHEDULERS: dict[str, Callable[[PairTimes], Sequence[int | None]]] = {
    "best effort (Fig. 15 a)": best_effort,
    "ZigZag, ILP-free (Fig. 15 b, 16)": ilp_free,
    "ZigZag, ILP (eq. 1)": ilp,
    "overlap, not live (Fig. 9 c)": overlap,
}


def example() -> PairTimes:
    return PairTimes(
        num_layers=LAYERS, layer_s=(1.0,) * BATCHES,
        ready_s=tuple(LOAD * layer for layer in range(LAYERS)),
    )  # fmt: skip


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for name, scheduler in SCHEDULERS.items():
        found = replay(example(), scheduler(example()))
        rows += numbers(name, found)
        rows += [
            {"quantity": "runs", "scheduler": name, "batch": run.batch + 1,
             "on_target": run.on_target, "start": run.start_s, "end": run.end_s}
            for run in found.runs
        ]  # fmt: skip
    return pd.DataFrame(rows).assign(inputs="paper")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(len(SCHEDULERS), 1, width=9, height=6)
    for panel, name in zip(axes, SCHEDULERS, strict=True):
        _gantt(panel, rows[(rows.quantity == "runs") & (rows.scheduler == name)])
        panel.set(title=name, xlim=(0, 45))
    axes[-1].set_xlabel("layer times since the first layer was there")
    return made, (
        "Pure schedulers, nothing was run: 7 layers, 6 layer times to load one. Numbers: batches; "
        "dotted: a layer arrives at the target."
    )


def numbers(name: str, found: Timeline) -> list[dict[str, object]]:
    """Of each batch: its end, its time from its first layer, its layers on either instance."""
    rows: list[dict[str, object]] = []
    for batch, (end, on_target) in enumerate(zip(found.ends_s, found.on_target, strict=True)):
        first = min(run.start_s for run in found.runs if run.batch == batch)
        values = {
            "end": end,
            "layers on the target": on_target,
            "from its first layer": end - first,
        }
        values["layers on the source"] = LAYERS - on_target
        for quantity, value in values.items():
            rows.append(
                {"quantity": quantity, "scheduler": name, "batch": batch + 1, "value": value}
            )
    return rows


def _gantt(panel: Axes, spans: pd.DataFrame) -> None:
    for batch, on_target, start, end in spans[["batch", "on_target", "start", "end"]].to_numpy():
        level = 0 if on_target else 1
        colour = PALETTE[batch - 1]
        panel.barh(level, end - start, left=start, color=colour, edgecolor="white")
        panel.text((start + end) / 2, level, str(batch), ha="center", va="center")
    for layer in range(LAYERS):
        panel.axvline(LOAD * layer, color="0.4", lw=0.7, ls=":")
    panel.set_yticks([0, 1], ["target", "source"])
    panel.grid(False)
