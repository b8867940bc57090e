"""Fig. 21: prompt tokens prefilled while new instances load, and what of their parameters is there.

Above, simulated: six instances of 24B; below, measured: two worker processes of this machine. Time
runs from when the first of them begins to load. Live, as in section 5.2, tokens come before the
last layer has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.blitzscale import SYSTEMS, Floats, Run, row, runs
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS = ("blitzscale_fig21", "blitzscale_fig21_live")
ENGINES = {"sim": "simulated, six", "torch": "measured, two"}
STEP_S, SHOWN_S = {"sim": 0.1, "torch": 0.25}, {"sim": 4.0, "torch": 5.0}
SHOWN_SEED = 0


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    engines = {
        point.path: point.manifest()["engine_name"] for point in points if point.path is not None
    }
    rows: list[dict[str, Any]] = []
    made, axes = figure(2, 2, width=9, height=6)
    panels = dict(zip(ENGINES, (axes[:2], axes[2:]), strict=True))
    for run in runs(points):
        engine = engines[run.path]
        loads, prefilled, served = timeline(run.path)
        found = [row(run, name, value) for name, value in numbers(loads, served).items()]
        if run.seed == SHOWN_SEED:
            found += _lines(panels[engine], run, loads, prefilled, engine)
        rows += [each | {"engine": engine} for each in found]
    for engine, (left, right) in panels.items():
        left.set(title=f"{ENGINES[engine]}: prefilled", ylabel="prompt tokens/s")
        right.set(title=f"{ENGINES[engine]}: parameters of all there", ylabel="share")
        for panel in (left, right):
            panel.set(xlim=(0, SHOWN_S[engine]), xlabel="seconds since loading began")
        left.legend(loc="upper right")
    stamp(
        made, points, "AzureConv's lengths (live a quarter of them), arrivals drawn. Above "
        "Mistral-24B, TP 2; below a random-weight model on paced workers. Lines: seed "
        f"{SHOWN_SEED}. Dotted: all are loaded.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def timeline(path: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """From the start of the first load, seconds: the loads; each request's first token with its
    prompt; and first tokens of requests that an instance still loading had a part in."""
    loads = events(path, "load").query("source != ''").sort_values("start_s")
    zero_s = loads.start_s.min()
    moves = events(path, "transfer").query("purpose == 'weights' and complete")
    moves = moves.assign(start_s=moves.start_s - zero_s, end_s=moves.end_s - zero_s)
    loads = loads.assign(start_s=loads.start_s - zero_s, end_s=loads.end_s - zero_s)
    loads.attrs["moves"] = moves
    columns = ["request_id", "prompt_tokens", "token_times_s"]
    requests = pq.read_table(path / "requests.parquet", columns=columns).to_pandas()
    first_s = np.array([times[0] for times in requests.token_times_s]) - zero_s
    prefilled = requests.assign(first_s=first_s)[["request_id", "prompt_tokens", "first_s"]]
    sent = events(path, "kv_move")
    new = loads.groupby("instance").end_s.max()
    early = [
        request
        for instance, start, requests_moved in zip(
            sent.instance, sent.start_s - zero_s, sent.requests, strict=True
        )
        if instance in new and start < new[instance]
        for request in requests_moved
    ]
    served = prefilled[prefilled.request_id.isin(early)]
    return loads, prefilled, served


def numbers(loads: pd.DataFrame, served: pd.DataFrame) -> dict[str, float]:
    return {
        "instances": float(loads.instance.nunique()),
        "all are loaded": float(loads.end_s.max()),
        "first is loaded": float(loads.groupby("instance").end_s.max().min()),
        "first token with a part on an instance that loads": float(served.first_s.min()),
        "sources that load nothing": float(len(set(loads.source) - set(loads.instance))),
    }


def _lines(
    axes: Sequence[Axes], run: Run, loads: pd.DataFrame, prefilled: pd.DataFrame, engine: str
) -> list[dict[str, Any]]:
    label, colour, line = SYSTEMS[run.system]
    step_s = STEP_S[engine]
    edges = np.arange(0, SHOWN_S[engine] + step_s, step_s)
    tokens, _ = np.histogram(prefilled.first_s, edges, weights=prefilled.prompt_tokens)
    moves = loads.attrs["moves"].sort_values("end_s")
    there = moves.bytes.cumsum() / moves.bytes.sum()
    axes[0].plot(edges[:-1], tokens / step_s, color=colour, ls=line, label=label)
    axes[1].plot(moves.end_s, there, color=colour, ls=line, drawstyle="steps-post")
    for panel in axes:
        panel.axvline(loads.end_s.max(), color=colour, lw=0.8, ls=":")
    series: dict[str, tuple[Floats, Floats]] = {
        "prompt tokens/s": (
            np.asarray(edges[:-1], np.float64),
            np.asarray(tokens, np.float64) / step_s,
        ),
        "share of the parameters there": (moves.end_s.to_numpy(), there.to_numpy()),
    }
    return [
        row(run, name, value, x=at)
        for name, (x, y) in series.items()
        for at, value in zip(x, y, strict=True)
    ]
