"""Figs. 9 (c) and 15: the schedulers as Gantt charts, in layer times.

The pure schedulers on the paper's example: seven layers, six layer times to load one, six batches
from when the first layer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure
from systems.blitzscale.ilp import ilp
from systems.blitzscale.pair import Pair, Timeline, replay
from systems.blitzscale.schedulers import best_effort, ilp_free, overlap

EXPERIMENTS: tuple[str, ...] = ()
LAYERS, LOAD, BATCHES = 7, 6.0, 6
SCHEDULERS: dict[str, Callable[[Pair], Sequence[int | None]]] = {
    "best effort (Fig. 15 a)": best_effort,
    "ZigZag, ILP-free (Fig. 15 b, 16)": ilp_free,
    "ZigZag, ILP (eq. 1)": ilp,
    "overlap, not live (Fig. 9 c)": overlap,
}


def example() -> Pair:
    return Pair(
        num_layers=LAYERS, layer_s=(1.0,) * BATCHES,
        ready_s=tuple(LOAD * layer for layer in range(LAYERS)),
    )  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(len(SCHEDULERS), 1, width=9, height=6)
    rows = []
    for panel, (name, scheduler) in zip(axes, SCHEDULERS.items(), strict=True):
        found = replay(example(), scheduler(example()))
        _gantt(panel, found)
        panel.set(title=name, xlim=(0, 45))
        rows += numbers(name, found)
    axes[-1].set_xlabel("layer times since the first layer was there")
    stamp(
        made, points, "Pure schedulers, nothing was run: 7 layers, 6 layer times to load one. "
        "Numbers: batches; dotted: a layer arrives at the target.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


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


def _gantt(panel: Axes, found: Timeline) -> None:
    for run in found.runs:
        level = 0 if run.on_target else 1
        width = run.end_s - run.start_s
        panel.barh(
            level, width, left=run.start_s, height=0.8, color=PALETTE[run.batch], edgecolor="white",
        )  # fmt: skip
        panel.text(run.start_s + width / 2, level, str(run.batch + 1), ha="center", va="center")
    for layer in range(LAYERS):
        panel.axvline(LOAD * layer, color="0.4", lw=0.7, ls=":")
    panel.set_yticks([0, 1], ["target", "source"])
    panel.grid(False)
