"""Fig. 7: what a switch of the decode instance consists of, T0 to T3, on real workers (left) and
simulated for 13B (right). Stages add one optimisation each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.errors import RunError
from harness.experiments.points import Point
from harness.records.numbers import seconds
from plots.panels import legend_above
from plots.runs import events, overrides
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig07", "aegaeon_fig07_sim")
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


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([row(point) for point in points])
    base = rows[rows.stage == "t0"].groupby(["engine", "seed"]).total_s.first().rename("t0_s")
    rows = rows.merge(base, on=["engine", "seed"])
    return rows.assign(removed=1 - rows.total_s / rows.t0_s)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9, height=5.6)
    titles = {"torch": "measured, small models", "sim": "simulated, 13B on two H800 (TP 2)"}
    for i, (engine, title) in enumerate(titles.items()):
        of_engine = rows[rows.engine == engine]
        _bars(axes[i], of_engine, list(STAGES), f"({'ab'[i]}) {title}")
        _bars(axes[i + 2], of_engine, list(STAGES)[2:], f"({'cd'[i]}) its last three, enlarged")
    for panel in axes[1::2]:
        panel.set_yticklabels([])
    legend_above(made, axes[:1], 4)
    return made, (
        "Mean of the decode instance's switches that cut requests off. Left: models with random "
        "weights. Right: restart (22.3 s) and pageable loading (2.83 GB/s) are the paper's own, "
        "inputs of the simulator; collection is an assumption."
    )


def row(point: Point) -> dict[str, object]:
    """The mean preempting switch of a run's decode instances: seconds by part, and `total_s`."""
    assert point.path is not None, point.refused
    manifest, found = point.manifest(), events(point.path, *KINDS)
    switches = preempting(found)
    parts = pd.DataFrame([split(found, switch) for switch in switches.itertuples()])
    about = {"engine": manifest["engine_name"], "hardware": manifest["hardware"]["name"]}
    about |= {"stage": overrides(point)["stage"], "seed": manifest["seeds"]["seed"]}
    about |= {"mechanism": len(switches)}
    means = parts.mean()
    return about | {f"{part}_s": means[part] for part in PARTS} | {"total_s": means.sum()}


def preempting(found: pd.DataFrame) -> pd.DataFrame:
    """The switches of decode instances that cut requests off, as Fig. 7's does: KV begins to leave.

    Raises RunError where there is none."""
    decoding = found[(found.kind == "run") & (found.phase == "decode")].instance.unique()
    switches = found[(found.kind == "switch") & found.instance.isin(decoding)]
    switches = switches[switches.before.notna()]
    saves = found[found.kind == "swap_out"]
    rows: Iterable[Any] = switches.itertuples()
    cut_off = [
        bool((saves.instance.eq(at.instance) & saves.start_s.between(at.start_s, at.end_s)).any())
        for at in rows
    ]
    if not any(cut_off):
        raise RunError("no switch of this run saves KV: its turns are longer than its requests")
    return switches[cut_off]


def split(found: pd.DataFrame, switch: Any) -> dict[str, float]:
    """A switch's seconds by part: at every instant, of the first part that goes on."""
    during = found[
        (found.instance == switch.instance)
        & (found.end_s > switch.start_s)
        & (found.start_s < switch.end_s)
        & found.kind.isin(PARTS)
        & ((found.kind != "prefetch") | (found.model == switch.model))  # of the one waited for
    ]
    edges = np.unique(
        np.clip([*during.start_s, *during.end_s, switch.start_s, switch.end_s],
                switch.start_s, switch.end_s)
    )  # fmt: skip
    spent_s = dict.fromkeys(PARTS, 0.0)
    for start_s, end_s in pairwise(edges):
        on = set(during[(during.start_s < end_s) & (during.end_s > start_s)].kind)
        part = next((part for part in PARTS if part in on), "other")
        spent_s[part] += end_s - start_s
    return spent_s


def _bars(panel: Axes, rows: pd.DataFrame, stages: Sequence[str], title: str) -> None:
    parts = [*(f"{part}_s" for part in PARTS), "total_s"]
    means = rows.groupby("stage")[parts].mean().loc[list(stages)]
    places = range(len(means))
    left = np.zeros(len(means))
    for colour, (part, label) in zip([*PALETTE[:7], "0.75"], PARTS.items(), strict=True):
        width = means[f"{part}_s"].to_numpy()
        panel.barh(places, width, left=left, color=colour, label=label, height=0.65)
        left = left + width
    for place, total_s in zip(places, left, strict=True):
        panel.text(total_s + 0.01 * left.max(), place, seconds(total_s), va="center", fontsize=8)
    panel.set_yticks(places, [STAGES[stage] for stage in means.index])
    panel.invert_yaxis()
    panel.set(title=title, xlabel="seconds", xlim=(0, 1.18 * left.max()))
