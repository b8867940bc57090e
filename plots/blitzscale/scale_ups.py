"""Single scale-ups and what they cost: Figs. 21 and 23."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from harness.records.device_events import covered_s
from plots.blitzscale.runs import SHOWN_SEED, SYSTEMS, Run, runs, table_of
from plots.figure import Panels, Points, picture
from plots.panels import curves
from plots.style import PALETTE
from systems.blitzscale.ilp import ilp
from systems.blitzscale.timeline import PairTimes

STEP_S, SHOWN_S = {"sim": 0.1, "torch": 0.25}, {"sim": 4.0, "torch": 5.0}
BESIDE = ("allcache", "network", "blitzscale")
TOKENS, THERE, LOADED = "prompt tokens/s", "share of the parameters there", "all are loaded"


def _live(run: Run) -> Iterator[dict[str, Any]]:
    """Yields what happens around the loads of a run. Times are seconds from the start of the first
    load."""
    begun = run.loads()
    zero_s = begun.start_s.min()
    loaded_s = begun.groupby("instance").end_s.max() - zero_s
    sent = run.requests()
    first_s = sent.first_s - zero_s
    # First tokens of requests that an instance still loading had a part in.
    ups = run.scale_ups()
    served_s = first_s[sent.request_id.isin(ups.served.explode())]
    by_request = sent.set_index("request_id").first_s
    shares = [
        (by_request[served].min() - start_s) / (end_s - start_s)
        for served, start_s, end_s in ups[["served", "start_s", "end_s"]].to_numpy()
        if served
    ]
    senders = set(begun.source) - set(loaded_s.index)
    engine = run.point.manifest()["engine_name"]
    yield from run.rows({
        "instances": len(loaded_s), LOADED: loaded_s.max(), "first is loaded": loaded_s.min(),
        "first token with a part on an instance that loads": served_s.min(),
        "first token over the load of its own instance, the latest": max(shares, default=np.nan),
        "sources that load nothing": len(senders),
    }, engine=engine)  # fmt: skip
    if run.seed == SHOWN_SEED:
        edges = np.arange(0, SHOWN_S[engine] + STEP_S[engine], STEP_S[engine])
        tokens, _ = np.histogram(first_s, edges, weights=sent.prompt_tokens)
        moves = run.events("transfer").query("purpose == 'weights' and complete")
        moves = moves.sort_values("end_s")
        there = moves.bytes.cumsum() / moves.bytes.sum()
        curves = run.curve(TOKENS, edges[:-1], tokens / STEP_S[engine])
        curves += run.curve(THERE, moves.end_s.to_numpy() - zero_s, there.to_numpy())
        yield from (each | {"engine": engine} for each in curves)


@picture(
    "blitzscale_fig21", table_of(_live), ("blitzscale_fig21",), shape=(1, 2), size=(9, 3.2),
    legend=2, quick="rows",
)  # fmt: skip
def fig21(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 21: prompt tokens prefilled while six instances of 24B load, and what of their
    parameters is there. Time runs from when the first of them begins to load. Live, as in section
    5.2, tokens come before the last layer has."""
    _tokens_and_layers(axes, rows, "sim")
    return (
        "Mistral-24B, TP 2, AzureConv's lengths, arrivals drawn. Lines: seed "
        f"{SHOWN_SEED}. Dotted: all are loaded."
    )


@picture(
    "blitzscale_fig21_live", table_of(_live), ("blitzscale_fig21_live",), shape=(1, 2),
    size=(9, 3.2), legend=3,
)  # fmt: skip
def fig21_live(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 21 measured: two worker processes of this machine load beside two that serve."""
    _tokens_and_layers(axes, rows, "torch")
    return (
        "A random-weight model on paced workers, a quarter of AzureConv's lengths, arrivals drawn. "
        f"Lines: seed {SHOWN_SEED}. Dotted: all are loaded."
    )


def _tokens_and_layers(axes: Panels, rows: pd.DataFrame, engine: str) -> None:
    looks = {system: SYSTEMS[system] for system in BESIDE}
    curves(axes[0], rows[rows.quantity == TOKENS], "x", "value", looks)
    curves(axes[1], rows[rows.quantity == THERE], "x", "value", looks, drawstyle="steps-post")
    loaded = rows[(rows.quantity == LOADED) & (rows.seed == SHOWN_SEED)].set_index("system").value
    for panel, (system, end_s) in product(axes, loaded.items()):
        panel.axvline(end_s, color=SYSTEMS[str(system)].colour, lw=0.8, ls=":")
    axes[0].set(title="prefilled", ylabel=TOKENS)
    axes[1].set(title="parameters of all there", ylabel="share", ylim=(0, 1.03))
    for panel in axes:
        panel.set(xlim=(0, SHOWN_S[engine]), xlabel="seconds since loading began")


LAYERS_8B, LOAD, BATCHES, REPEATS = 32, 6.0, 12, 9  # §5.2: layers; Fig. 15's load; "a dozen"
TIMES = 3  # how often the solver is measured
PLANES = {"data plane (s)": PALETTE[1], "control plane (s)": PALETTE[3]}


def control(points: Points) -> pd.DataFrame:
    rows = [row for run in runs(points) for row in run.rows(_planes(run))]
    solver = {"system": "solver", "inputs": "measured", "quantity": "solving the program, 8B (s)"}
    solved = [solver | {"seed": seed, "value": _solving_s()} for seed in range(TIMES)]
    return pd.DataFrame([*rows, *solved])


@picture("blitzscale_fig23", control, ("blitzscale_fig21_live",), size=(5, 3), legend=len(PLANES))
def fig23(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 23: how much of a scale-up is control plane, measured on paced worker processes.

    A scale-up lasts from the monitor's decision (the slot is taken) to when the instance serves.
    Data plane: the time in which bytes of parameters are on their way to it. Control plane: the
    rest: plans, commands and their answers, and a chain's wait for its first layer. Worker
    processes exist from the start, as the paper's pool of CUDA contexts does (A.1), so that none is
    begun. Links are slowed as in Fig. 21: the share depends on that, the control plane's seconds
    hardly do.

    Beside it the wall time of solving the integer program (§5.2) on the machine that draws this.
    The paper compares with vLLM, whose numbers its text does not have."""
    names = [name for name in SYSTEMS if name in set(rows.system)]
    below = np.zeros(len(names))
    for plane, colour in PLANES.items():
        means = rows[rows.quantity == plane].groupby("system").value.mean()
        values = means.loc[names].to_numpy()
        axes[0].bar(range(len(names)), values, 0.6, below, color=colour, label=plane)
        below = below + values
    axes[0].set_xticks(range(len(names)), [SYSTEMS[name].label for name in names])
    axes[0].set_ylabel("seconds, mean of scale-ups")
    axes[0].grid(False, axis="x")
    return "Links slowed as in Fig. 21; a random-weight model."


def _planes(run: Run) -> dict[str, float]:
    """Mean times of a run's scale-ups in the data plane and the control plane; the share is of
    their sums."""
    slots = run.scale_ups()
    moves = run.events("transfer").query("purpose == 'weights'")
    data_s: list[float] = []
    for name, start_s, end_s in slots[["instance", "start_s", "end_s"]].to_numpy():
        mine = moves[(moves.instance == name) & (moves.end_s > start_s) & (moves.start_s < end_s)]
        data_s.append(covered_s(mine.to_dict("records")))
    every_s = [float(length_s) for length_s in slots.end_s - slots.start_s]
    return {
        "scale-ups": float(len(every_s)),
        "data plane (s)": float(np.mean(data_s)),
        "control plane (s)": float(np.mean(every_s) - np.mean(data_s)),
        "share of a scale-up that is control plane": 1 - float(sum(data_s) / sum(every_s)),
    }


def _solving_s() -> float:
    """Seconds to solve the integer program of 8B's layers and a dozen batches: the median of its
    repeats, wall time."""
    ready_s = tuple(LOAD * layer for layer in range(LAYERS_8B))
    pair = PairTimes(num_layers=LAYERS_8B, layer_s=(1.0,) * BATCHES, ready_s=ready_s)
    times_s = []
    for _ in range(REPEATS):
        begun_s = perf_counter()
        ilp(pair)
        times_s.append(perf_counter() - begun_s)
    return float(np.median(times_s))
