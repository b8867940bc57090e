"""Fig. 23: how much of a scale-up is control plane, measured on paced worker processes.

A scale-up lasts from the monitor's decision (the slot is taken) to when the instance serves. Data
plane: the time in which bytes of parameters are on their way to it. Control plane: the rest: plans,
commands and their answers, and a chain's wait for its first layer. Worker processes exist from the
start, as the paper's pool of CUDA contexts does (A.1), so that none is begun. Links are slowed as
in Fig. 21: the share depends on that, the control plane's seconds hardly do.

Beside it the wall time of solving the integer program (§5.2) on the machine that draws this.
The paper compares with vLLM, whose numbers its text does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import SYSTEMS, row, runs, scale_ups
from plots.panels import legend_above
from plots.runs import events
from plots.style import PALETTE, figure
from systems.blitzscale.ilp import ilp
from systems.blitzscale.timeline import PairTimes

EXPERIMENTS = ("blitzscale_fig21_live",)
LAYERS_8B, LOAD, BATCHES, REPEATS = 32, 6.0, 12, 9  # §5.2: layers; Fig. 15's load; "a dozen"
TIMES = 3  # that the solver is measured


PLANES = {"data plane (s)": PALETTE[1], "control plane (s)": PALETTE[3]}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for run in runs(points):
        rows += [row(run, name, value) for name, value in planes(run.path).items()]
    solver = {"system": "solver", "inputs": "measured", "quantity": "solving the program, 8B (s)"}
    solved = [solver | {"seed": seed, "value": solving_s()} for seed in range(TIMES)]
    return pd.DataFrame([*rows, *solved])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (axes,) = figure(1, 1, width=5, height=3)
    names = [name for name in SYSTEMS if name in set(rows.system)]
    below = np.zeros(len(names))
    for plane, colour in PLANES.items():
        means = rows[rows.quantity == plane].groupby("system").value.mean()
        values = means.loc[names].to_numpy()
        axes.bar(range(len(names)), values, 0.6, below, color=colour, label=plane)
        below = below + values
    axes.set_xticks(range(len(names)), [SYSTEMS[name].label for name in names])
    axes.set_ylabel("seconds, mean of scale-ups")
    axes.grid(False, axis="x")
    legend_above(made, [axes], len(PLANES))
    return made, "Links slowed as in Fig. 21; a random-weight model."


def planes(path: Path) -> dict[str, float]:
    """Of the scale-ups of a run, means; the share is of their sums."""
    slots = scale_ups(path)
    moves = events(path, "transfer").query("purpose == 'weights'")
    data_s: list[float] = []
    every_s: list[float] = []
    for name, start_s, end_s in zip(slots.instance, slots.start_s, slots.end_s, strict=True):
        mine = moves[(moves.instance == name) & (moves.end_s > start_s) & (moves.start_s < end_s)]
        mine = mine.sort_values("start_s")
        data_s.append(covered_s(list(zip(mine.start_s, mine.end_s, strict=True))))
        every_s.append(float(end_s - start_s))
    return {
        "scale-ups": float(len(every_s)),
        "data plane (s)": float(np.mean(data_s)),
        "control plane (s)": float(np.mean(every_s) - np.mean(data_s)),
        "share of a scale-up that is control plane": 1 - float(sum(data_s) / sum(every_s)),
    }


def covered_s(spans: Sequence[tuple[float, float]]) -> float:
    """How long at least one of `spans`, in order of their starts, lasts."""
    total_s, until_s = 0.0, -np.inf
    for start_s, end_s in spans:
        total_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return float(total_s)


def solving_s() -> float:
    """The integer program of 8B's layers and a dozen batches, median of its repeats, wall time."""
    pair = PairTimes(
        num_layers=LAYERS_8B, layer_s=(1.0,) * BATCHES,
        ready_s=tuple(LOAD * layer for layer in range(LAYERS_8B)),
    )  # fmt: skip
    times_s = []
    for _ in range(REPEATS):
        begun_s = perf_counter()
        ilp(pair)
        times_s.append(perf_counter() - begun_s)
    return float(np.median(times_s))
