"""Spikes over time: Figs. 1, 11 and 15, simulated, and one schedule live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.figure import Panels, Points, picture
from plots.kunserve.runs import (
    FULL,
    LATENCIES,
    OVER_TIME,
    POINT,
    STEP_S,
    SYSTEMS,
    mechanism,
    numbers,
    point_of,
    requests,
    slo_s,
    system,
    violations,
)
from plots.kunserve.timeline import (
    PANELS,
    over_time,
    share_seconds,
    throttled_s,
    timeline,
    timeline_rows,
)
from plots.panels import Look, facets
from plots.runs import Floats, events
from plots.style import PALETTE, log_scale

THROTTLED = {"vllm": "(c)", "vllm_kv_swap": "(d)", "llumnix_migration": "(e)"}  # and panels
APART_S = 10.0  # two throttlings that are nearer are one


FULL_AT = "gb9"  # the point at which memory fills


def throttled(points: Points) -> pd.DataFrame:
    runs = [
        _throttled(p) | {"system": system(p), "point": point_of(p), "seed": p.seed} for p in points
    ]
    shown = [point for point in points if point_of(point) == FULL_AT]
    return pd.concat([pd.DataFrame(runs), timeline_rows(shown, system)])


@picture(
    "kunserve_fig01", throttled, ("kunserve_fig01", "kunserve_fig01_migration"), shape=(5, 1),
    size=(9, 8.6), quick="rows",
)  # fmt: skip
def fig01(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 1: what throttled memory does to TTFT: rate (a), KV memory (b), TTFT per input token
    with recompute (c), KV swap (d) and migration (e)."""
    shown = rows[rows.series == "vllm"]
    axes[0].plot(shown.time_s, shown.arrivals_per_s, color="0.3", lw=1.1)
    axes[0].set(title="(a) rate", ylabel="requests/s")
    axes[1].plot(shown.time_s, shown.demand, color="0.3", lw=1.1)
    axes[1].axhline(1, color="0.4", lw=0.8, ls="--")
    axes[1].set(title="(b) KV demand, vLLM", ylabel="of the memory", ylim=(0, None))
    for panel, shown, name in facets(axes[2:], rows, series=THROTTLED):
        look = SYSTEMS[name]
        highest, mean = 1e3 * shown.ttft_per_token_max_s, 1e3 * shown.ttft_per_token_s
        panel.plot(shown.time_s, highest, ".", color=look.colour, ms=4, label="highest of 0.5 s")
        panel.plot(shown.time_s, mean, color="0.3", lw=0.9, label="mean of 2 s")
        panel.set(title=f"{THROTTLED[name]} {look.label}", ylabel="TTFT per input\ntoken (ms)")
        log_scale(panel, "y")
        panel.sharey(axes[2])
    share_seconds(axes)
    return (
        "Azure code arrivals, seed 0. Eight instances of 14B, 9.4 GB of KV each. Dashed: all KV "
        "memory, about 2.1 x the mean demand. Dots: highest TTFT per input token of 0.5 s of "
        "arrivals; lines: mean of 2 s. (d): one request out at a time."
    )


def _throttled(point: Point) -> dict[str, Any]:
    """One run's numbers: TTFT, also per input token, at most and P99 over P50; stays;
    throttlings."""
    found, shown = requests(point), timeline(point)
    row: dict[str, Any] = {"config_hash": point.config_hash()}
    measures = {"ttft": found.ttft_s, "per_token": found.ttft_s / found.prompt_tokens}
    for name, values in measures.items():
        half = values.median()
        row |= {f"{name}_max": values.max() / half, f"{name}_p99": values.quantile(0.99) / half}
    stay_s = found.last_s - found.arrival_s
    full_s = shown.time_s[shown.demand >= FULL].to_numpy()
    throttlings = int(len(full_s) > 0) + int((np.diff(full_s) > APART_S).sum())
    return row | {
        "stay_mean_s": stay_s.mean(), "stay_std_s": stay_s.std(), "stay_var": stay_s.var(),
        "stay_max_s": stay_s.max(), "load": shown.demand[shown.time_s <= 100].mean(),
        "throttlings": throttlings, "mechanism": throttlings,  # what Fig. 1 is about
        "rate_peak": shown.arrivals_per_s.max(),
    }  # fmt: skip


def at_highest_rate(points: Points) -> pd.DataFrame:
    runs = [
        spike(timeline(point)) | {"system": system(point), "seed": point.seed,
                                  "config_hash": point.config_hash(),
                                  "mechanism": mechanism(point)}
        for point in points
    ]  # fmt: skip
    return pd.concat([pd.DataFrame(runs), timeline_rows(points, system)])


@picture(
    "kunserve_fig11", at_highest_rate, ("kunserve_regime", "kunserve_fig10_migration"),
    shape=(len(PANELS), 1), size=(9, 8.4), legend=3, only={POINT: ("gb33_busy",)}, quick="rows",
)  # fmt: skip
def fig11(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 11: over time, BurstGPT at the highest rate of Fig. 10: TTFT, KV, queue, throughput."""
    over_time(axes, rows, OVER_TIME)
    return (
        "Azure code arrivals, seed 0. TTFT by arrival, mean of 2 s. Memory: for KV, over what "
        "it is with nothing dropped (dashed)."
    )


def spike(found: pd.DataFrame) -> dict[str, object]:
    """TTFT at its highest after throttling over its mean before."""
    start_s = throttled_s(found)
    before = found[found.time_s < start_s].ttft_s.mean()
    after = found[found.time_s >= start_s].ttft_s.max() if np.isfinite(start_s) else np.nan
    return {"part": "spike", "throttled_s": start_s, "spike": after / before}


RESTORE = {
    "live": Look("live restore", PALETTE[0]),
    "drain": Look("without live restore", PALETTE[1]),
}
SECOND_SPIKE_S = 110.0  # a time after the first spike and before the second


def restored(points: Points) -> pd.DataFrame:
    """The runs' numbers; rows of live restore also have what it removes of each number, and P99
    TTFT without it over that with it. The SLO is Fig. 10's."""
    shown = [point for point in points if point.experiment == "kunserve_fig15"]
    slo = slo_s([
        point for point in points
        if point not in shown and system(point) == "llumnix_replication"
    ])  # fmt: skip
    rows = pd.DataFrame([numbers(p) | _second_spike(p, slo) for p in shown])
    found = rows.set_index(["restore", "seed"])
    live, drain = found.loc["live"], found.loc["drain"]
    made = {f"{name}_removed": 1 - live[f"{name}_s"] / drain[f"{name}_s"] for name in LATENCIES}
    made["ttft_p99_without"] = drain.ttft_p99_s / live.ttft_p99_s
    of_live = rows.restore == "live"
    rows = rows.assign(**{name: rows.seed.map(new).where(of_live) for name, new in made.items()})
    return pd.concat([rows, timeline_rows(shown, lambda p: p.overrides["system.restore"])])


@picture(
    "kunserve_fig15", restored, ("kunserve_fig15", "kunserve_fig10_burstgpt"),
    shape=(len(PANELS), 1), size=(9, 8.2), legend=4,
)  # fmt: skip
def fig15(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 15: with live restore and with requests that end in the pipeline, over two spikes."""
    over_time(axes, rows, RESTORE)
    without = rows.ttft_p99_without.dropna()
    return (
        "Azure code arrivals; drawn: seed 0 alone. Eight instances of 14B, 9.4 GB of KV each. "
        "Without live restore requests end in the pipeline. Memory: for KV, over what it is with "
        "nothing dropped (dashed). P99 TTFT without live restore over with it: "
        f"{without.min():.1f} to {without.max():.1f} by seed."
    )


def _second_spike(point: Point, slo: tuple[float, float]) -> dict[str, Any]:
    """Violations of the SLO, and the least share of the KV memory that is free from the second
    spike on."""
    found = timeline(point)
    spike = found[found.time_s > SECOND_SPIKE_S]
    free = max(0.0, (1 - spike.held / spike.capacity).min())
    return violations(requests(point), *slo) | {"free": free}


LIVE = {
    "kunserve": "KunServe",
    "kunserve_blocking": "blocking exchange (Fig. 14)",
    "kunserve_drain": "no live restore (Fig. 15)",
    "llumnix_replication": "recompute (replication)",
    "llumnix_migration": "Llumnix, migration",
}
TRAFFIC = {"weights": PALETTE[4], "exchange": PALETTE[1], "migration": PALETTE[2]}
ROWS = ("KV / memory", "waiting requests", "TTFT (s)", "gap between tokens (s)", "links (MB/s)")


def live(points: Points) -> pd.DataFrame:
    rows = [
        _with_traffic(point).assign(
            system=system(point), config_hash=point.config_hash(), mechanism=mechanism(point)
        )
        for point in points
    ]
    return pd.concat(rows)


@picture(
    "kunserve_fig15_live", live, ("kunserve_live",), shape=(len(ROWS), len(LIVE)), size=(13.8, 9.5),
    legend=7,
)  # fmt: skip
def fig15_live(axes: Panels, rows: pd.DataFrame) -> str:
    """One schedule live, five times: KunServe, two ablations (Figs. 14, 15), recompute and
    migration. Over time: KV that is wanted and there, queue, TTFT, gaps between tokens, and traffic
    of the links."""
    for k, (name, title) in enumerate(LIVE.items()):
        column = axes[k :: len(LIVE)]
        _column(column, rows[rows.system == name])
        column[0].set_title(title)
        column[-1].set_xlabel("seconds")
    for k, name in enumerate(ROWS):
        line = axes[k * len(LIVE) : (k + 1) * len(LIVE)]
        line[0].set_ylabel(name)
        lows, tops = zip(*(panel.get_ylim() for panel in line), strict=True)
        for panel in line:
            panel.set(xlim=(0, rows.time_s.max()), ylim=(min(lows), max(tops)))
    return (
        "Random-weight model on four paced workers, one run each. Links: KV and weights, "
        "activations not counted."
    )


def _with_traffic(point: Point) -> pd.DataFrame:
    """Adds to `timeline`, for each STEP_S, the mean and the longest of the gaps between tokens that
    end within the step, and bytes per second of each kind of TRAFFIC."""
    found = timeline(point)
    times_s = found.time_s.to_numpy()
    stamps = requests(point).token_times_s
    ends = np.concatenate([times[1:] for times in stamps])
    gaps = pd.Series(np.concatenate([np.diff(times) for times in stamps]))
    by_step = gaps.groupby(np.floor(ends / STEP_S).astype(int))
    steps = np.arange(len(times_s))
    found["gap_mean_s"] = by_step.mean().reindex(steps).to_numpy()
    found["gap_max_s"] = by_step.max().reindex(steps).to_numpy()
    moved = events(point.folder, "kv_move", "transfer")
    for purpose in TRAFFIC:
        mine = moved[moved.purpose == purpose] if len(moved) else moved
        found[f"{purpose}_bytes_per_s"] = _rate(mine, times_s) if len(mine) else 0.0
    return found


def _rate(moved: pd.DataFrame, times_s: Floats) -> Floats:
    """Bytes per second in each of the steps that begin at `times_s`, each copy's spread evenly over
    its time."""
    total = np.zeros(len(times_s))
    for start_s, end_s, size in moved[["start_s", "end_s", "bytes"]].to_numpy(float):
        until_s = max(end_s, start_s + 1e-3)
        inside = np.minimum(times_s + STEP_S, until_s) - np.maximum(times_s, start_s)
        total += size * np.clip(inside, 0, None) / (until_s - start_s) / STEP_S
    return total


def _column(axes: Sequence[Axes], found: pd.DataFrame) -> None:
    time_s = found.time_s
    axes[0].plot(time_s, found.demand, color=PALETTE[0], lw=1.1, label="KV wanted")
    axes[0].plot(time_s, found.capacity, color="0.3", ls=":", lw=1.4, label="KV memory")
    axes[1].plot(time_s, found.waiting, color="0.3", lw=1.1)
    axes[2].plot(time_s, found.ttft_s, color="0.3", lw=1.1)
    axes[3].plot(time_s, found.gap_mean_s, color="0.3", lw=1.1, label="mean gap")
    axes[3].plot(time_s, found.gap_max_s, ".", color=PALETTE[3], ms=2.5, label="longest gap")
    log_scale(axes[3], "y")
    traffic = [found[f"{purpose}_bytes_per_s"] / 1e6 for purpose in TRAFFIC]
    axes[4].stackplot(time_s, traffic, colors=TRAFFIC.values(), labels=TRAFFIC)
