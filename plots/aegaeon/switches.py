"""Switches of the decode instance, T0 to T3: what they consist of (Fig. 7), and one of each stage
over time (Figs. 7, 8 and 10). Stages add one optimisation each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from matplotlib.typing import ColorType

from harness.errors import RunError
from harness.experiments.points import Point
from harness.records.numbers import seconds
from plots.figure import Panels, Points, picture
from plots.panels import facets, lanes, spans
from plots.runs import events, overrides
from plots.style import PALETTE

PARTS = {  # where several go on at once, the time is the first one's
    "restart": "engine restart",
    "collect": "garbage collection",
    "load": "model loading",
    "prefetch": "waiting for the prefetch",
    "adopt": "copy on the device",
    "swap_out": "KV out",
    "swap_in": "KV in",
    "other": "other",
}
STAGES = {  # neighbours differ by one optimisation
    "t0": "T0: default",
    "t1": "T1: + component reuse",
    "t2_no_prefetch": "+ explicit memory",
    "t2": "T2: + prefetching",
    "t3": "T3: + fine-grained sync",
}
KINDS = ("run", "switch", *(part for part in PARTS if part != "other"))


def switches(points: Points) -> pd.DataFrame:
    rows = pd.DataFrame([row(point) for point in points])
    base = rows[rows.stage == "t0"].groupby(["engine", "seed"]).total_s.first().rename("t0_s")
    rows = rows.merge(base, on=["engine", "seed"])
    return rows.assign(removed=1 - rows.total_s / rows.t0_s)


def row(point: Point) -> dict[str, object]:
    """The mean preempting switch of a run's decode instances: seconds by part, and `total_s`."""
    manifest, found = point.manifest(), events(point.folder, *KINDS)
    shown = preempting(found)
    means = pd.DataFrame([split(found, switch) for switch in shown.itertuples()]).mean()
    about = {"engine": manifest["engine_name"], "hardware": manifest["hardware"]["name"]}
    about |= {"stage": overrides(point)["stage"], "seed": manifest["seeds"]["seed"]}
    parts = {f"{part}_s": means[part] for part in PARTS}
    return about | {"mechanism": len(shown)} | parts | {"total_s": means.sum()}


def preempting(found: pd.DataFrame) -> pd.DataFrame:
    """The switches of decode instances that cut requests off, as Fig. 7's does: KV begins to leave.
    Raises RunError where there is none."""
    decoding = found[(found.kind == "run") & (found.phase == "decode")].instance.unique()
    every = found[(found.kind == "switch") & found.instance.isin(decoding)]
    every = every[every.before.notna()]
    saves = found[found.kind == "swap_out"]
    rows: Iterable[Any] = every.itertuples()
    cut_off = [
        bool((saves.instance.eq(at.instance) & saves.start_s.between(at.start_s, at.end_s)).any())
        for at in rows
    ]
    if not any(cut_off):
        raise RunError("no switch of this run saves KV: its turns are longer than its requests")
    return every[cut_off]


def split(found: pd.DataFrame, switch: Any) -> dict[str, float]:
    """A switch's seconds by part: at every instant, of the first part that goes on."""
    during = found[
        (found.instance == switch.instance)
        & (found.end_s > switch.start_s)
        & (found.start_s < switch.end_s)
        & found.kind.isin(PARTS)
        & ((found.kind != "prefetch") | (found.model == switch.model))  # of the one waited for
    ]
    bounds = (switch.start_s, switch.end_s)
    edges = np.unique(np.clip([*during.start_s, *during.end_s, *bounds], *bounds))
    spent_s = dict.fromkeys(PARTS, 0.0)
    for start_s, end_s in pairwise(edges):
        on = set(during[(during.start_s < end_s) & (during.end_s > start_s)].kind)
        part = next((part for part in PARTS if part in on), "other")
        spent_s[part] += end_s - start_s
    return spent_s


@picture(
    "aegaeon_fig07", switches, ("aegaeon_fig07", "aegaeon_fig07_sim"), shape=(2, 2), size=(9, 5.6),
    legend=4,
)  # fmt: skip
def fig07(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 7: what a switch of the decode instance consists of, on real workers (left) and
    simulated for 13B (right)."""
    titles = {"torch": "measured, small models", "sim": "simulated, 13B on two H800 (TP 2)"}
    for i, (engine, title) in enumerate(titles.items()):
        of_engine = rows[rows.engine == engine]
        _bars(axes[i], of_engine, list(STAGES), f"({'ab'[i]}) {title}")
        _bars(axes[i + 2], of_engine, list(STAGES)[2:], f"({'cd'[i]}) its last three, enlarged")
    for panel in axes[1::2]:
        panel.set_yticklabels([])
    return (
        "Mean of the decode instance's switches that cut requests off. Left: models with random "
        "weights. Right: restart (22.3 s) and pageable loading (2.83 GB/s) are the paper's own, "
        "inputs of the simulator; collection is an assumption."
    )


def _bars(panel: Axes, rows: pd.DataFrame, stages: Sequence[str], title: str) -> None:
    means = rows.groupby("stage")[[f"{part}_s" for part in PARTS]].mean().loc[list(stages)]
    places, left = range(len(means)), np.zeros(len(means))
    for colour, (part, label) in zip([*PALETTE[:7], "0.75"], PARTS.items(), strict=True):
        width = means[f"{part}_s"].to_numpy()
        panel.barh(places, width, left=left, color=colour, label=label, height=0.65)
        left = left + width
    for place, total_s in zip(places, left, strict=True):
        panel.text(total_s + 0.01 * left.max(), place, seconds(total_s), va="center", fontsize=8)
    panel.set_yticks(places, [STAGES[stage] for stage in stages])
    panel.invert_yaxis()
    panel.set(title=title, xlabel="seconds", xlim=(0, 1.18 * left.max()))


SEED = 0
LANES = {  # where each kind of event is drawn
    "batches": ("run",),
    "engine and weights": ("restart", "collect", "load", "adopt"),
    "prefetch": ("prefetch",),
    "KV out": ("swap_out",),
    "KV in": ("swap_in",),
}
COLOURS: dict[str, ColorType] = dict(zip(["run", *PARTS], ["0.6", *PALETTE], strict=False))


def median_switches(points: Points) -> pd.DataFrame:
    columns = ["kind", "model", "start_s", "end_s", "switch_s"]
    return pd.concat(
        around_median(events(point.folder, *KINDS))[columns].assign(
            stage=overrides(point)["stage"], seed=SEED, config_hash=point.config_hash()
        )
        for point in points
        if point.seed == SEED
    )


def around_median(found: pd.DataFrame) -> pd.DataFrame:
    """Events on the instance around its preempting switch of median latency, times relative."""
    every = preempting(found)
    latency_s = every.end_s - every.start_s
    switch = every.loc[latency_s.sort_values().index[len(every) // 2]]
    length_s = switch.end_s - switch.start_s
    from_s, to_s = switch.start_s - 0.3 * length_s, switch.end_s + 0.3 * length_s
    here = (found.instance == switch.instance) & (found.kind != "switch")
    shown = found[here & (found.end_s > from_s) & (found.start_s < to_s)]
    moved: pd.DataFrame = shown.assign(
        start_s=shown.start_s.clip(lower=from_s) - switch.start_s,
        end_s=shown.end_s.clip(upper=to_s) - switch.start_s,
        switch_s=length_s,
    )
    return moved


@picture("aegaeon_fig10", median_switches, ("aegaeon_fig07",), shape=(5, 1), size=(9, 9.2))
def fig10(axes: Panels, rows: pd.DataFrame) -> str:
    """Figs. 7, 8 and 10: one switch of the decode instance at each stage. Drawn is, of a live run's
    switches that cut requests off, the one of median latency: what computes, moves and waits."""
    for panel, mine, stage in facets(axes, rows, stage=STAGES):
        _gantt(panel, mine, STAGES[stage])
    axes[-1].set_xlabel("time since the switch was decided")
    names = {"run": "batch", **PARTS, "prefetch": "prefetching"}
    patches = [Patch(color=COLOURS[kind], label=names[kind]) for kind in COLOURS if kind != "other"]
    axes[0].figure.legend(handles=patches, loc="outside upper center", ncols=4)
    return (
        f"The switch of median latency of each stage's run of seed {SEED}, of those that cut "
        "requests off. The dashed lines bound it: from the decision to the first batch of the new "
        "model."
    )


def _gantt(panel: Axes, found: pd.DataFrame, title: str) -> None:
    for place, kinds in enumerate(LANES.values()):
        for kind in kinds:
            look = {"facecolor": COLOURS[kind], "edgecolor": "k", "lw": 0.4}
            spans(panel, found[found.kind == kind], place, 0.76, **look)
    switch_s = float(found.switch_s.iloc[0])
    for edge in (0.0, switch_s):
        panel.axvline(edge, color="k", ls="--", lw=0.8)
    lanes(panel, list(LANES))
    panel.set_xlim(-0.3 * switch_s, 1.3 * switch_s)
    panel.set_title(f"{title}: {seconds(switch_s)}")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at_s, position: f"{1000 * at_s:g} ms"))
