"""Fig. 14: where requests spend their time, across numbers of models and rates.

Of each request: waiting for and in its prefill, then waiting for and in its decoding steps. What
it waits for its KV on the way to a decode instance is the data overhead, taken out of the
waiting; control overhead (index keeping, CUDA events) is not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.runs import events, overrides, requests
from plots.runs import table as of_runs
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig14", "aegaeon_fig14_rates")
STAGES = {
    "prefill_wait_s": "prefill waiting",
    "prefill_run_s": "prefill execution",
    "decode_wait_s": "decoding waiting",
    "decode_run_s": "decoding execution",
    "kv_wait_s": "data overhead (waiting for KV)",
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    served = [point for point in points if point.path is not None]
    stages = pd.DataFrame([stage_seconds(point.path).sum() for point in served if point.path])
    return of_runs(served).join(stages).assign(setup=[_setup(point) for point in served])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    means = rows.groupby("setup", sort=False)[list(STAGES)].mean()
    shares = 100 * means.div(means.sum(axis=1), axis=0)
    made, (axes,) = figure(1, 1, width=9, height=3.6)
    shares.rename(columns=STAGES).plot.barh(
        stacked=True, ax=axes, width=0.75, color=[PALETTE[i] for i in (1, 3, 8, 0, 2)]
    )
    axes.invert_yaxis()
    axes.set(xlabel="share of the time of all requests (%)", ylabel="", xlim=(0, 100))
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)
    return made, (
        "Mean of the inputs, of 120 s but for 40 models, of 60 s. Control overhead is not modelled."
    )


def _setup(point: Point) -> str:
    values = {"num_models": 40, "rate_per_s": 0.1} | overrides(point)
    return f"{values['num_models']} models, {values['rate_per_s']} requests/s each"


def stage_seconds(path: Path) -> pd.DataFrame:
    """A row per completed request with the seconds of each stage."""
    done = requests(path).query("status == 'completed'").set_index("request_id")
    runs = events(path, "run").explode("requests")
    runs["seconds"] = runs.end_s - runs.start_s
    spent = runs.pivot_table("seconds", "requests", "phase", "sum").reindex(done.index)
    spent = spent.reindex(columns=["prefill", "decode"]).fillna(0.0)
    swaps = events(path, "swap_in")
    swaps["seconds"] = swaps.end_s - swaps.start_s + swaps.waited_s
    first_s, last_s = done.token_times_s.str[0], done.token_times_s.str[-1]
    kv_s = swaps.groupby("request_id").seconds.sum().reindex(done.index).fillna(0.0)
    decoding_s = last_s.astype(float) - first_s.astype(float)
    kv_s = kv_s.clip(upper=(decoding_s - spent.decode).clip(lower=0.0))  # the last may overlap
    return pd.DataFrame(
        {
            "prefill_wait_s": first_s - done.arrival_s - spent.prefill,
            "prefill_run_s": spent.prefill,
            "decode_wait_s": decoding_s - spent.decode - kv_s,
            "decode_run_s": spent.decode,
            "kv_wait_s": kv_s,
        }
    )
