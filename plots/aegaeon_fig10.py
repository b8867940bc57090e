"""Figs. 7, 8 and 10: one switch of the decode instance at each stage, T0 to T3, as a Gantt chart.

Drawn is, of a live run's switches that cut requests off, the one of median latency: what
computes, what moves and what waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from matplotlib.typing import ColorType

from harness.experiments.points import Point
from harness.records.numbers import seconds
from plots.aegaeon_fig07 import KINDS, PARTS, STAGES, preempting
from plots.runs import events, overrides
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig07",)
SEED = 0
LANES = {  # where each kind of event is drawn
    "batches": ("run",),
    "engine and weights": ("restart", "collect", "load", "adopt"),
    "prefetch": ("prefetch",),
    "KV out": ("swap_out",),
    "KV in": ("swap_in",),
}
COLOURS: dict[str, ColorType] = dict(zip(["run", *PARTS], ["0.6", *PALETTE], strict=False))


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.concat([_events(point) for point in points if point.seed == SEED])


def _events(point: Point) -> pd.DataFrame:
    assert point.path is not None
    shown = around_median(events(point.path, *KINDS))
    columns = ["kind", "model", "start_s", "end_s", "switch_s"]
    return shown[columns].assign(
        stage=overrides(point)["stage"], seed=SEED, config_hash=point.config_hash()
    )


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(len(STAGES), 1, width=9, height=9.2)
    for panel, (stage, title) in zip(axes, STAGES.items(), strict=True):
        _gantt(panel, rows[rows.stage == stage], title)
    axes[-1].set_xlabel("time since the switch was decided")
    names = {"run": "batch", **PARTS, "prefetch": "prefetching"}
    patches = [Patch(color=COLOURS[kind], label=names[kind]) for kind in COLOURS if kind != "other"]
    made.legend(handles=patches, loc="outside upper center", ncols=4)
    return made, (
        f"The switch of median latency of each stage's run of seed {SEED}, of those that cut "
        "requests off. The dashed lines bound it: from the decision to the first batch of the new "
        "model."
    )


def around_median(found: pd.DataFrame) -> pd.DataFrame:
    """Events on the instance around its preempting switch of median latency, times relative."""
    switches = preempting(found)
    latency_s = switches.end_s - switches.start_s
    switch = switches.loc[latency_s.sort_values().index[len(switches) // 2]]
    length_s = switch.end_s - switch.start_s
    from_s, to_s = switch.start_s - 0.3 * length_s, switch.end_s + 0.3 * length_s
    shown = found[
        (found.instance == switch.instance)
        & (found.end_s > from_s) & (found.start_s < to_s) & (found.kind != "switch")
    ]  # fmt: skip
    moved: pd.DataFrame = shown.assign(
        start_s=shown.start_s.clip(lower=from_s) - switch.start_s,
        end_s=shown.end_s.clip(upper=to_s) - switch.start_s,
        switch_s=length_s,
    )
    return moved


def _gantt(panel: Axes, found: pd.DataFrame, title: str) -> None:
    for place, kinds in enumerate(LANES.values()):
        for kind in kinds:
            of_kind = found[found.kind == kind]
            spans = list(zip(of_kind.start_s, of_kind.end_s - of_kind.start_s, strict=True))
            panel.broken_barh(
                spans, (place - 0.38, 0.76), facecolor=COLOURS[kind], edgecolor="k", lw=0.4
            )
    switch_s = float(found.switch_s.iloc[0])
    for edge in (0.0, switch_s):
        panel.axvline(edge, color="k", ls="--", lw=0.8)
    panel.set_yticks(range(len(LANES)), list(LANES))
    panel.set_ylim(len(LANES) - 0.5, -0.5)
    panel.set_xlim(-0.3 * switch_s, 1.3 * switch_s)
    panel.set_title(f"{title}: {seconds(switch_s)}")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at_s, position: f"{1000 * at_s:g} ms"))
    panel.grid(False, axis="y")
