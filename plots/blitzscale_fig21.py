"""Fig. 21: prompt tokens prefilled while new instances load, and what of their parameters is there.

Above, simulated: six instances of 24B; below, measured: two worker processes of this machine. Time
runs from when the first of them begins to load. Live, as in section 5.2, tokens come before the
last layer has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import SYSTEMS, Run, curve, loads, row, runs, scale_ups
from plots.panels import legend_above
from plots.runs import events
from plots.style import figure

EXPERIMENTS = ("blitzscale_fig21", "blitzscale_fig21_live")
ENGINES = {"sim": "simulated, six", "torch": "measured, two"}
STEP_S, SHOWN_S = {"sim": 0.1, "torch": 0.25}, {"sim": 4.0, "torch": 5.0}
SHOWN = ("allcache", "network", "blitzscale")
SHOWN_SEED = 0
TOKENS, THERE, LOADED = "prompt tokens/s", "share of the parameters there", "all are loaded"


class Timeline(NamedTuple):
    """In seconds from the start of the first load."""

    loads: pd.DataFrame
    moves: pd.DataFrame  # layers that came
    prefilled: pd.DataFrame  # each request's first token with its prompt
    served: pd.DataFrame  # of requests that an instance still loading had a part in


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    done = [point for point in points if point.path is not None]
    for run, point in zip(runs(done), done, strict=True):
        engine = point.manifest()["engine_name"]
        story = timeline(run.path)
        found = [row(run, name, value) for name, value in numbers(story).items()]
        if run.seed == SHOWN_SEED:
            found += _curves(run, story, engine)
        rows += [each | {"engine": engine} for each in found]
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9, height=6)
    for panels, (engine, title) in zip((axes[:2], axes[2:]), ENGINES.items(), strict=True):
        for system in SHOWN:
            _lines(panels, rows[(rows.engine == engine) & (rows.system == system)], system)
        panels[0].set(title=f"{title}: prefilled", ylabel=TOKENS)
        panels[1].set(title=f"{title}: parameters of all there", ylabel="share", ylim=(0, 1.03))
        for panel in panels:
            panel.set(xlim=(0, SHOWN_S[engine]), xlabel="seconds since loading began")
    legend_above(made, axes, len(SHOWN))
    return made, (
        "AzureConv's lengths (live a quarter of them), arrivals drawn. Above Mistral-24B, TP 2; "
        f"below a random-weight model on paced workers. Lines: seed {SHOWN_SEED}. Dotted: all are "
        "loaded."
    )


def timeline(path: Path) -> Timeline:
    begun = loads(path).sort_values("start_s")
    zero_s = begun.start_s.min()

    def shifted(found: pd.DataFrame) -> pd.DataFrame:
        return found.assign(start_s=found.start_s - zero_s, end_s=found.end_s - zero_s)

    moves = events(path, "transfer").query("purpose == 'weights' and complete")
    columns = ["request_id", "prompt_tokens", "token_times_s"]
    requests = pq.read_table(path / "requests.parquet", columns=columns).to_pandas()
    first_s = np.array([times[0] for times in requests.token_times_s]) - zero_s
    prefilled = requests.assign(first_s=first_s)[["request_id", "prompt_tokens", "first_s"]]
    early = [request for requests in scale_ups(path).served for request in requests]
    served = prefilled[prefilled.request_id.isin(early)]
    return Timeline(shifted(begun), shifted(moves), prefilled, served)


def numbers(story: Timeline) -> dict[str, float]:
    loaded_s = story.loads.groupby("instance").end_s.max()
    return {
        "instances": float(len(loaded_s)),
        LOADED: float(loaded_s.max()),
        "first is loaded": float(loaded_s.min()),
        "first token with a part on an instance that loads": float(story.served.first_s.min()),
        "sources that load nothing": float(len(set(story.loads.source) - set(loaded_s.index))),
    }


def _curves(run: Run, story: Timeline, engine: str) -> list[dict[str, Any]]:
    edges = np.arange(0, SHOWN_S[engine] + STEP_S[engine], STEP_S[engine])
    weights = story.prefilled.prompt_tokens
    tokens, _ = np.histogram(story.prefilled.first_s, edges, weights=weights)
    moves = story.moves.sort_values("end_s")
    there = moves.bytes.cumsum() / moves.bytes.sum()
    return [
        *curve(run, TOKENS, edges[:-1], tokens / STEP_S[engine]),
        *curve(run, THERE, moves.end_s.to_numpy(), there.to_numpy()),
    ]


def _lines(panels: Sequence[Axes], rows: pd.DataFrame, system: str) -> None:
    label, colour, _, line = SYSTEMS[system]
    for panel, name in zip(panels, (TOKENS, THERE), strict=True):
        shown = rows[rows.quantity == name]
        style = "steps-post" if name == THERE else "default"
        if len(shown):
            panel.plot(shown.x, shown.value, color=colour, ls=line, label=label, drawstyle=style)
        for end_s in rows[(rows.quantity == LOADED) & (rows.seed == SHOWN_SEED)].value:
            panel.axvline(end_s, color=colour, lw=0.8, ls=":")
