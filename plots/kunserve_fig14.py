"""Fig. 14: live and blocking exchange of KV over networks of 25 to 200 Gbps a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.kunserve import FACTOR, caption, requests
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS = ("kunserve_fig14", "kunserve_fig14_modest")
COLOURS = {"live": PALETTE[0], "blocking": PALETTE[1]}
TIMELINE_GBPS = 50.0
BIN_S = 0.25


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    modest = [p for p in points if p.experiment == "kunserve_fig14_modest"]
    exchanges = [p for p in points if p.experiment == "kunserve_fig14"]
    found = [requests(p.path) for p in modest if p.path is not None]
    slo_s = FACTOR * float(pd.concat(found).tbt_s.median())
    rows = pd.DataFrame([measured(point, slo_s) for point in exchanges])
    keys = ["gbps", "seed"]
    rows = rows.set_index(keys)
    blocking = rows[rows.exchange == "blocking"]
    rows["gap_removed"] = 1 - rows.gap_mean_s / blocking.gap_mean_s.reindex(rows.index)
    rows["longer"] = rows.exchange_s / blocking.exchange_s.reindex(rows.index)
    rows = rows.reset_index()
    made, axes = figure(2, 2, width=9.5, height=5.8)
    titles = {
        "gap_mean_s": "mean decode time during the exchange (s)",
        "exchange_s": "time of the exchange (s)", "stall_s": "longest stall of a request (s)",
    }  # fmt: skip
    for axis, (column, title) in zip(axes, titles.items(), strict=False):
        for exchange, colour in COLOURS.items():
            shown = rows[rows.exchange == exchange].groupby("gbps")[column]
            axis.plot(shown.mean(), color=colour, marker="o", ms=4, label=exchange)
            axis.fill_between(shown.mean().index, shown.min(), shown.max(), color=colour, alpha=0.2)
        axis.set(title=title, xlabel="Gbps a GPU")
        log_scale(axis, "x")
        axis.set_xticks([25, 50, 100, 200], ["25", "50", "100", "200"])
    axes[0].axhline(slo_s, color="0.4", lw=0.8, ls="--")
    axes[0].legend()
    for point in exchanges:
        if point.seed == 0 and _gbps(point) == TIMELINE_GBPS:
            times_s, rate = tokens(point)
            exchange = point.overrides["system.exchange"]
            axes[3].plot(times_s, rate, color=COLOURS[exchange], lw=1.1)
    axes[3].set(title="tokens/s at 50 Gbps, seed 0", xlabel="seconds since the drop", xlim=(-5, 30))
    caption(
        made, points, "Two instances of 14B. Decode time: gaps between tokens of requests that run "
        "at the drop, while KV is exchanged. Dashed: the SLO of TBT.",
    )  # fmt: skip
    return publish(made, rows, folder, Path(__file__).stem)


def _gbps(point: Point) -> float:
    return float(point.overrides["hardware.nic_bytes_per_s"]) * 8 / 1e9


def measured(point: Point, slo_s: float) -> dict[str, Any]:
    """Of the run's first exchange: its time and bytes, and the gaps between tokens of the requests
    that ran when it began, which end within it or are the first to end after it."""
    assert point.path is not None
    row: dict[str, Any] = {"exchange": point.overrides["system.exchange"], "gbps": _gbps(point),
                           "seed": point.seed, "slo_tbt_s": slo_s,
                           "config_hash": point.config_hash()}  # fmt: skip
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
        "gap_mean_s": pooled.mean(), "stall_s": pooled.max(), "over_slo": pooled.mean() / slo_s,
        "wire_s": moved.bytes.groupby(moved.instance).sum().max() / (_gbps(point) / 8 * 1e9),
    }  # fmt: skip


def tokens(point: Point) -> tuple[Any, Any]:
    """Tokens/s in bins of BIN_S, times counted from the first drop."""
    assert point.path is not None
    drop_s = events(point.path, "drop").start_s.min()
    stamps = np.concatenate(requests(point.path).token_times_s.to_numpy()) - drop_s
    edges = np.arange(-5.0, 30.0, BIN_S)
    return edges[:-1], np.histogram(stamps, edges)[0] / BIN_S
