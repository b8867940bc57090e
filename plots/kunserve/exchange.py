"""Exchanges of KV at a drop, live and blocking: Figs. 6, 9 and 14, simulated and measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.errors import RunError
from harness.experiments.points import Point
from plots.figure import Panels, PaperFigure, Points, picture
from plots.kunserve.runs import mechanism, requests, slo_s
from plots.panels import Look, bars, facets, lanes, legend_above, lines, spans
from plots.runs import events
from plots.style import PALETTE, figure, log_scale

CHARTED_GBPS = 50.0
VICTIMS = 4
BEFORE_S, AFTER_S = 0.6, 3.4
CHARTS = {
    "blocking": "Fig. 6: victims wait for their KV (blocking)",
    "live": "Fig. 9: victims go on, their attention where the KV is (live)",
}


def charted(points: Points) -> list[Point]:
    return [p for p in points if p.seed == 0 and _gbps(p) == CHARTED_GBPS]


def exchanges(points: Points) -> pd.DataFrame:
    return pd.concat([_lanes(point, (1.0, 10.0)) for point in charted(points)])


@picture("kunserve_fig09", exchanges, ("kunserve_fig14",), shape=(2, 1), size=(9, 6.4))
def fig09(axes: Panels, rows: pd.DataFrame) -> str:
    """Figs. 6 and 9: one drop as a Gantt chart: KV that moves each way and the tokens of victims.
    Fig. 6 is the blocking exchange, Fig. 9 the live one. Drawn from simulated runs of Fig. 14;
    `kunserve_fig14_live` has both from live ones."""
    for panel, mine, exchange in facets(axes, rows, series=CHARTS):
        _gantt(panel, mine, CHARTS[exchange])
    return (
        f"Azure code arrivals, seed 0. Two instances of 14B, {CHARTED_GBPS:g} Gbps. Bars: a "
        "request's KV, first chunk to last block; ticks: tokens of four requests."
    )


def _lanes(point: Point, run_s: tuple[float, float]) -> pd.DataFrame:
    """The lanes of a Gantt chart: moves of KV, and tokens of VICTIMS requests that ran for `run_s`
    before and after it, around the first drop; times since it. Raises RunError where there is
    none."""
    drop_s = events(point.folder, "drop").start_s.min()
    moves = events(point.folder, "kv_move")
    if moves.empty:
        raise RunError(
            f"{point.folder.name}: nothing is dropped and no KV moves: there is no exchange"
        )
    moves = moves[(moves.purpose == "exchange") & (moves.start_s < drop_s + AFTER_S)]
    lane = "KV " + moves.instance + " to " + moves.to
    parts = [pd.DataFrame({"lane": lane, "start_s": moves.start_s, "end_s": moves.end_s})]
    found = requests(point)
    victims = found[(found.first_s < drop_s - run_s[0]) & (found.last_s > drop_s + run_s[1])]
    for k, victim in enumerate(victims.iloc[:VICTIMS].itertuples(), 1):
        times = np.asarray(victim.token_times_s)
        times = times[(times > drop_s - BEFORE_S) & (times < drop_s + AFTER_S)]
        lane = f"tokens of victim {k} ({victim.instance})"
        parts.append(pd.DataFrame({"lane": lane, "start_s": times, "end_s": times}))
    rows = pd.concat(parts)
    return rows.assign(
        start_s=rows.start_s - drop_s, end_s=rows.end_s - drop_s, part="lane",
        series=point.overrides["system.exchange"], config_hash=point.config_hash(),
    )  # fmt: skip


def _gantt(axes: Axes, found: pd.DataFrame, title: str) -> None:
    names = sorted(found.lane.unique())
    for row, name in enumerate(names):
        mine = found[found.lane == name]
        if name.startswith("KV"):
            spans(axes, mine, row, 0.7, color=PALETTE[4], lw=0.3, edgecolor="white")
        else:
            axes.plot(mine.start_s, [row] * len(mine), "|", color=PALETTE[0], ms=9)
    axes.axvline(0, color="0.3", lw=0.9, ls="--")
    lanes(axes, names)
    axes.set(title=title, xlim=(-BEFORE_S, AFTER_S), xlabel="seconds since the drop")


LOOKS = {
    "live": Look("live exchange", PALETTE[0], "o"),
    "whole": Look("live, a message a request", PALETTE[2], "^"),
    "blocking": Look("blocking exchange", PALETTE[1], "s"),
}
TITLES = {
    "gap_mean_s": "mean decode time during the exchange (s)",
    "exchange_s": "time of the exchange (s)",
    "stall_s": "longest stall of a request (s)",
}
BIN_S = 1.0
WHOLE_BYTES = 2**28  # chunks that no request fills
NETWORKS = {25.0: Look("25 Gbps", PALETTE[3], "v"), 200.0: Look("200 Gbps", PALETTE[4], "D")}


def by_network(points: Points) -> pd.DataFrame:
    _, tbt_s = slo_s([p for p in points if p.experiment == "kunserve_fig14_modest"])
    runs = [p for p in points if p.experiment == "kunserve_fig14"]
    others = [p for p in points if p.experiment == "kunserve_fig14_chunks"]
    return pd.concat([_against_blocking(runs + others, tbt_s), *map(_tokens, charted(runs))])


@picture(
    "kunserve_fig14", by_network,
    ("kunserve_fig14", "kunserve_fig14_chunks", "kunserve_fig14_modest"), shape=(2, 3),
    size=(12.5, 6.2), legend=6, quick=(True, {"system.chunks.bytes": (str(WHOLE_BYTES),)}),
)  # fmt: skip
def fig14(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 14: live and blocking exchange of KV over networks of 25 to 200 Gbps a GPU. On the
    right, the live one by the size of its chunks."""
    measured = rows.dropna(subset=["gbps"])
    for panel, (column, title) in zip((axes[0], axes[1], axes[3]), TITLES.items(), strict=True):
        lines(panel, measured, "gbps", column, LOOKS, by="exchange")
        panel.set(title=title, xlabel="Gbps a GPU")
        log_scale(panel, "x")
        panel.set_xticks([25, 50, 100, 200], ["25", "50", "100", "200"])
        panel.set_xticks([], minor=True)
        panel.set_ylim(bottom=0)
    axes[0].axhline(rows.slo_tbt_s.max(), color="0.4", lw=0.8, ls="--", label="SLO of TBT")
    over_time = {name: look._replace(marker="") for name, look in LOOKS.items()}
    lines(axes[4], rows, "time_s", "tokens_per_s", over_time, by="series")
    axes[4].set(title="at 50 Gbps, seed 0", xlabel="seconds since the drop", ylabel="tokens/s")
    axes[4].set_xlim(-5, 30)
    live = measured[measured.exchange != "blocking"]
    for panel, column in zip((axes[2], axes[5]), TITLES, strict=False):
        lines(panel, live, "chunk_mb", column, NETWORKS, by="gbps")
        log_scale(panel, "x")
        panel.set(title=TITLES[column], xlabel="MB of a chunk, at most (live exchange)")
        panel.set_ylim(bottom=0)
    return (
        "Azure code arrivals. Two instances of 14B. Mean and range of seeds. Decode time: gaps "
        "between tokens of requests that run at the drop, while KV is exchanged. The rule's chunks "
        "fit between two activations. At the right of the chunk panels, a request is one message."
    )


def _gbps(point: Point) -> float:
    return float(point.overrides["hardware.nic_bytes_per_s"]) * 8 / 1e9


def _exchange(point: Point) -> str:
    """`live` and `blocking` have the rule's chunks."""
    chunk_bytes = point.overrides.get("system.chunks.bytes")
    if chunk_bytes is None:
        return str(point.overrides["system.exchange"])
    return "whole" if int(chunk_bytes) == WHOLE_BYTES else "chunks"


def _against_blocking(points: Points, slo_tbt_s: float) -> pd.DataFrame:
    """Sets beside each run what blocking gives on the same network and schedule."""
    rows = pd.DataFrame([_measured(point, slo_tbt_s) for point in points])
    rows = rows.set_index(["gbps", "seed"])
    blocking = rows[rows.exchange == "blocking"]
    rows["gap_removed"] = 1 - rows.gap_mean_s / blocking.gap_mean_s.reindex(rows.index)
    rows["longer"] = rows.exchange_s / blocking.exchange_s.reindex(rows.index)
    return rows.reset_index()


def _measured(point: Point, slo_tbt_s: float) -> dict[str, Any]:
    """Measures the run's first exchange: its time and bytes, and the gaps between tokens of the
    requests that ran when it began, which end within it or are the first to end after it."""
    row: dict[str, Any] = {
        "exchange": _exchange(point), "gbps": _gbps(point), "seed": point.seed,
        "slo_tbt_s": slo_tbt_s, "config_hash": point.config_hash(), "mechanism": mechanism(point),
    }  # fmt: skip
    found = events(point.folder, "exchange")
    if found.empty:
        return row
    first = found.sort_values("start_s").iloc[0]
    start_s, end_s = first.start_s, first.end_s
    moves = events(point.folder, "kv_move")
    moved = moves[(moves.purpose == "exchange") & (moves.end_s <= end_s + 1e-9)]
    running = requests(point).query("first_s < @start_s < last_s")
    gaps = []
    for times in running.token_times_s:
        ends = times[1:]
        last = np.searchsorted(ends, end_s)  # the first that ends after it counts too
        gaps.append(np.diff(times)[(ends > start_s) & (np.arange(len(ends)) <= last)])
    pooled = np.concatenate(gaps)
    attended = events(point.folder, "remote_attention")
    beside = attended[attended.start_s < end_s]
    return row | {
        "chunk_mb": first.chunk_bytes / 1e6,
        "remote_steps": float(beside.steps.sum()) if len(beside) else 0.0,
        "exchange_s": end_s - start_s, "bytes": float(moved.bytes.sum()), "victims": len(gaps),
        "gap_mean_s": pooled.mean(), "stall_s": pooled.max(),
        "over_slo": pooled.mean() / slo_tbt_s,
        "wire_s": moved.bytes.groupby(moved.instance).sum().max() / (_gbps(point) / 8 * 1e9),
    }  # fmt: skip


def _tokens(point: Point) -> pd.DataFrame:
    """Tokens/s in bins of BIN_S, times counted from the first drop."""
    drop_s = events(point.folder, "drop").start_s.min()
    stamps = np.concatenate(requests(point).token_times_s.to_numpy()) - drop_s
    edges = np.arange(-5.0, 30.0, BIN_S)
    rate = np.histogram(stamps, edges)[0] / BIN_S
    return pd.DataFrame({"time_s": edges[:-1], "tokens_per_s": rate}).assign(
        part="tokens", series=point.overrides["system.exchange"], config_hash=point.config_hash()
    )


LIVE_BYTES_PER_S = 2.35e6  # the network's rate in the Gantt charts


def live(points: Points) -> pd.DataFrame:
    rows = _against_blocking(points, np.nan)
    shown = [p for p in points if _gbps(p) == LIVE_BYTES_PER_S * 8 / 1e9]
    rows = rows.assign(mb_per_s=rows.gbps / 8 * 1e3)
    return pd.concat([rows, *(_lanes(point, (0.3, 3.0)) for point in shown)])


def plot_live(rows: pd.DataFrame) -> tuple[Figure, str]:
    """Figs. 6, 9 and 14 from live runs: two paced worker processes that drop and exchange once.
    Above, one exchange each way as a Gantt chart, blocking and live; below, what it costs at two
    rates."""
    made, _ = figure(1, 1, width=10, height=8.4)
    made.clear()
    axes = made.subplot_mosaic([["blocking"] * 3, ["live"] * 3, [*TITLES]])
    for exchange, title in CHARTS.items():
        _gantt(axes[exchange], rows[rows.series == exchange], title)
    looks = {name: LOOKS[name] for name in CHARTS}
    for column, title in TITLES.items():
        bars(axes[column], rows, "mb_per_s", column, looks, by="exchange")
        axes[column].set(title=title.replace(" during", "\nduring"), xlabel="MB/s of the network")
    legend_above(made, [axes[column] for column in TITLES], 2)
    return made, (
        "Random-weight model on two paced workers, BurstGPT's lengths a quarter and half as long. "
        f"Charts at {LIVE_BYTES_PER_S / 1e6:g} MB/s. Bars: a request's KV, first chunk to last "
        "block; ticks: tokens. One run each."
    )


fig14_live = PaperFigure("kunserve_fig14_live", live, plot_live, ("kunserve_fig14_live",))
