"""A run over time: KV capacity and demand, queue, TTFT, throughput; Figs. 1, 11 and 15 show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.figure import Points
from plots.kunserve.runs import (
    FULL,
    STEP_S,
    capacity_tokens,
    count_until,
    num_instances,
    requests,
    steps,
)
from plots.panels import Look
from plots.runs import Floats, events, held
from plots.style import log_scale

SMOOTH_S = 2.0
POLL_S = 0.005  # at most between two groups that are looked at in one poll
PANELS = {
    "ttft_s": "TTFT (s)", "demand": "KV demand / memory", "waiting": "waiting requests",
    "tokens_per_s": "tokens/s",
}  # fmt: skip


def timeline_rows(points: Points, name: Callable[[Point], str]) -> pd.DataFrame:
    """`timeline` of the runs of seed 0, as rows of a table."""
    made = [
        timeline(p).assign(part="timeline", series=name(p), config_hash=p.config_hash())
        for p in points if p.seed == 0
    ]  # fmt: skip
    return pd.concat(made)


def over_time(axes: Sequence[Axes], rows: pd.DataFrame, looks: Mapping[str, Look]) -> None:
    """A panel for each of PANELS; dotted the memory of those that drop layers."""
    for name, look in looks.items():
        mine = rows[rows.series == name]
        if mine.empty:
            continue
        for panel, (column, title) in zip(axes, PANELS.items(), strict=True):
            panel.plot(mine.time_s, mine[column], lw=1.1, **look.curve)
            panel.set_ylabel(title)
        if (mine.capacity != 1).any():
            looks_of_memory = {"color": look.colour, "ls": ":", "lw": 1.4}
            axes[1].plot(
                mine.time_s, mine.capacity, label=f"memory, {look.label}", **looks_of_memory
            )
    axes[1].axhline(1, color="0.4", lw=0.8, ls="--")
    log_scale(axes[0], "y")
    share_seconds(axes)


def share_seconds(axes: Sequence[Axes]) -> None:
    for panel in axes[:-1]:
        panel.sharex(axes[-1])
    axes[-1].set_xlabel("seconds")


def timeline(point: Point) -> pd.DataFrame:
    """Each STEP_S: KV held and queued and the capacity (as shares of all KV memory with nothing
    dropped), requests that wait, tokens/s, and the mean TTFT of those that arrived in the last
    SMOOTH_S, also per input token, and of these the highest that arrived in the step. Capacity: of
    kunserve, from its own records."""
    found = requests(point)
    times_s = steps(float(found.last_s.max()) + STEP_S)
    total = capacity_tokens(point) * num_instances(point)
    running, queued = held(found, times_s)
    stamps = np.sort(np.concatenate(found.token_times_s.to_numpy()))
    waiting = count_until(found.arrival_s, times_s) - count_until(found.first_s, times_s)
    tokens = np.searchsorted(stamps, times_s)
    rate = (tokens - np.searchsorted(stamps, times_s - SMOOTH_S)) / SMOOTH_S
    per_token = found.ttft_s / found.prompt_tokens
    highest = per_token.groupby((found.arrival_s / STEP_S).astype(int)).max()
    return pd.DataFrame(
        {
            "time_s": times_s, "held": running / total, "demand": (running + queued) / total,
            "capacity": capacity(point, times_s), "waiting": waiting, "tokens_per_s": rate,
            "arrivals_per_s": _recent(found.arrival_s, np.ones(len(found)), times_s) / SMOOTH_S,
            "ttft_s": _mean(found.arrival_s, found.ttft_s, times_s),
            "ttft_per_token_s": _mean(found.arrival_s, per_token, times_s),
            "ttft_per_token_max_s": highest.reindex(range(len(times_s))).to_numpy(),
        }
    )  # fmt: skip


def capacity(point: Point, times_s: Floats) -> Floats:
    """KV memory over what it is with nothing dropped. All of it where nothing can be dropped."""
    found = events(point.folder, "kv")
    if found.empty:
        return np.ones(len(times_s))
    kv = found.sort_values("end_s", kind="stable")
    whole = kv[~kv.instance.str.contains("+", regex=False)].capacity_bytes.iloc[0]
    total = whole * num_instances(point)
    poll = (kv.end_s.diff() > POLL_S).cumsum()  # live, groups are looked at one after the other
    at = kv.groupby(poll).agg({"end_s": "first", "capacity_bytes": "sum"})
    place = np.clip(np.searchsorted(at.end_s, times_s, side="right") - 1, 0, None)
    share: Floats = at.capacity_bytes.to_numpy(float)[place] / total
    return share


def throttled_s(shown: pd.DataFrame) -> float:
    """When the demand for KV first exceeds what there is with nothing dropped; nan: never."""
    over = shown[shown.demand >= FULL]
    return float(over.time_s.iloc[0]) if len(over) else float("nan")


def _recent(times: pd.Series, values: Floats | pd.Series, at_s: Floats) -> Floats:
    """Sum of the `values` of the last SMOOTH_S."""
    order = np.argsort(times.to_numpy())
    ends = np.append(0.0, np.cumsum(np.asarray(values, float)[order]))
    sorted_s = times.to_numpy()[order]
    last, first = (np.searchsorted(sorted_s, at_s - back, side="right") for back in (0, SMOOTH_S))
    found: Floats = ends[last] - ends[first]
    return found


def _mean(times: pd.Series, values: pd.Series, at_s: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = _recent(times, values, at_s) / _recent(times, np.ones(len(times)), at_s)
    return mean
