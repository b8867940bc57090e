"""Fig. 14: live and blocking exchange of KV over networks of 25 to 200 Gbps a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import mechanism, requests, slo_s
from plots.panels import Look, legend_above, lines
from plots.runs import events
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("kunserve_fig14", "kunserve_fig14_modest")
LOOKS = {
    "live": Look("live exchange", PALETTE[0], "o"),
    "blocking": Look("blocking exchange", PALETTE[1], "s"),
}
TITLES = {
    "gap_mean_s": "mean decode time during the exchange (s)",
    "exchange_s": "time of the exchange (s)",
    "stall_s": "longest stall of a request (s)",
}
TIMELINE_GBPS = 50.0
BIN_S = 1.0


def table(points: Sequence[Point]) -> pd.DataFrame:
    _, tbt_s = slo_s([p for p in points if p.experiment == "kunserve_fig14_modest"])
    exchanges = [p for p in points if p.experiment == "kunserve_fig14"]
    rows = against_blocking(pd.DataFrame([measured(point, tbt_s) for point in exchanges]))
    shown = [p for p in exchanges if p.seed == 0 and _gbps(p) == TIMELINE_GBPS]
    return pd.concat([rows, *map(tokens, shown)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9.5, height=5.8)
    for panel, (column, title) in zip(axes, TITLES.items(), strict=False):
        lines(panel, rows, "gbps", column, LOOKS, by="exchange")
        panel.set(title=title, xlabel="Gbps a GPU")
        log_scale(panel, "x")
        panel.set_xticks([25, 50, 100, 200], ["25", "50", "100", "200"])
        panel.set_xticks([], minor=True)
        panel.set_ylim(bottom=0)
    axes[0].axhline(rows.slo_tbt_s.max(), color="0.4", lw=0.8, ls="--", label="SLO of TBT")
    over_time = {name: look._replace(marker="") for name, look in LOOKS.items()}
    lines(axes[3], rows, "time_s", "tokens_per_s", over_time, by="series")
    axes[3].set(title="at 50 Gbps, seed 0", xlabel="seconds since the drop", ylabel="tokens/s",
                xlim=(-5, 30))  # fmt: skip
    legend_above(made, axes, 3)
    return made, (
        "Azure code arrivals. Two instances of 14B. Mean and range of seeds. Decode time: gaps "
        "between tokens of requests that run at the drop, while KV is exchanged."
    )


def _gbps(point: Point) -> float:
    return float(point.overrides["hardware.nic_bytes_per_s"]) * 8 / 1e9


def against_blocking(rows: pd.DataFrame) -> pd.DataFrame:
    """Beside each run what blocking gives on the same network and schedule."""
    rows = rows.set_index(["gbps", "seed"])
    blocking = rows[rows.exchange == "blocking"]
    rows["gap_removed"] = 1 - rows.gap_mean_s / blocking.gap_mean_s.reindex(rows.index)
    rows["longer"] = rows.exchange_s / blocking.exchange_s.reindex(rows.index)
    return rows.reset_index()


def measured(point: Point, slo_tbt_s: float) -> dict[str, Any]:
    """Of the run's first exchange: its time and bytes, and the gaps between tokens of the requests
    that ran when it began, which end within it or are the first to end after it."""
    assert point.path is not None
    row: dict[str, Any] = {
        "exchange": point.overrides["system.exchange"], "gbps": _gbps(point), "seed": point.seed,
        "slo_tbt_s": slo_tbt_s, "config_hash": point.config_hash(), "mechanism": mechanism(point),
    }  # fmt: skip
    found = events(point.path, "exchange")
    if found.empty:
        return row
    first = found.sort_values("start_s").iloc[0]
    start_s, end_s = first.start_s, first.end_s
    moves = events(point.path, "kv_move")
    moved = moves[(moves.purpose == "exchange") & (moves.end_s <= end_s + 1e-9)]
    gaps = []
    for times in requests(point.path).token_times_s:
        if times[0] < start_s < times[-1]:
            ends = np.asarray(times)[1:]
            last = np.searchsorted(ends, end_s)  # the first that ends after it counts too
            here = (ends > start_s) & (np.arange(len(ends)) <= last)
            gaps.append(np.diff(times)[here])
    pooled = np.concatenate(gaps)
    return row | {
        "exchange_s": end_s - start_s, "bytes": float(moved.bytes.sum()), "victims": len(gaps),
        "gap_mean_s": pooled.mean(), "stall_s": pooled.max(),
        "over_slo": pooled.mean() / slo_tbt_s,
        "wire_s": moved.bytes.groupby(moved.instance).sum().max() / (_gbps(point) / 8 * 1e9),
    }  # fmt: skip


def tokens(point: Point) -> pd.DataFrame:
    """Tokens/s in bins of BIN_S, times counted from the first drop."""
    assert point.path is not None
    drop_s = events(point.path, "drop").start_s.min()
    stamps = np.concatenate(requests(point.path).token_times_s.to_numpy()) - drop_s
    edges = np.arange(-5.0, 30.0, BIN_S)
    rate = np.histogram(stamps, edges)[0] / BIN_S
    return pd.DataFrame({"time_s": edges[:-1], "tokens_per_s": rate}).assign(
        part="tokens", series=point.overrides["system.exchange"], config_hash=point.config_hash()
    )
