"""Fig. 15: with live restore and with requests that end in the pipeline, over two spikes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import LATENCIES, numbers, requests, slo_s, system, violations
from plots.kunserve_timeline import over_time, timeline, timeline_rows
from plots.panels import Look
from plots.style import PALETTE

EXPERIMENTS = ("kunserve_fig15", "kunserve_fig10_burstgpt")
RESTORE = {
    "live": Look("live restore", PALETTE[0]),
    "drain": Look("without live restore", PALETTE[1]),
}
SECOND_SPIKE_S = 110.0  # after the first spike, before the second


def table(points: Sequence[Point]) -> pd.DataFrame:
    slo = slo_s([point for point in points if _modest(point)])
    shown = [point for point in points if point.experiment == "kunserve_fig15"]
    rows = ablated(pd.DataFrame([numbers(p) | of_spike(p, slo) for p in shown]))
    return pd.concat([rows, timeline_rows(shown, lambda p: p.overrides["system.restore"])])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    return over_time(rows, RESTORE), (
        "Azure code arrivals, seed 0. Without live restore requests end in the pipeline. Memory: "
        "for KV, over what it is with nothing dropped (dashed)."
    )


def _modest(point: Point) -> bool:
    """Whether Fig. 10's SLO is made of it."""
    if point.experiment == "kunserve_fig15" or system(point) != "llumnix_replication":
        return False
    return float(point.overrides["workload.scale.rate"]) == 1.0


def of_spike(point: Point, slo: tuple[float, float]) -> dict[str, Any]:
    """Violations of the SLO, and the least share of the KV memory that is free from the second
    spike on."""
    found = timeline(point)
    spike = found[found.time_s > SECOND_SPIKE_S]
    free = max(0.0, (1 - spike.held / spike.capacity).min())
    return violations(requests(point.path), *slo) | {"free": free}


def ablated(rows: pd.DataFrame) -> pd.DataFrame:
    """With what live restore removes of each number, and P99 TTFT without it over with it, in the
    rows of live restore."""
    found = rows.set_index(["restore", "seed"])
    live, drain = found.loc["live"], found.loc["drain"]
    made = {f"{name}_removed": 1 - live[f"{name}_s"] / drain[f"{name}_s"] for name in LATENCIES}
    made["ttft_p99_without"] = drain.ttft_p99_s / live.ttft_p99_s
    of_live = rows.restore == "live"
    return rows.assign(**{name: rows.seed.map(new).where(of_live) for name, new in made.items()})
