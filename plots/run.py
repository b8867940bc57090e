"""One run at a glance: rates, TTFT, queue and batch over time, and the latency CDFs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from harness.records.metrics import over_time
from harness.records.run_folder import FinishedRun
from harness.records.run_table import LATENCIES, title
from harness.records.token_log import Floats, TokenLog
from plots.panels import simulator_bands
from plots.style import PALETTE, cdf, figure, interval_s, log_scale, save, stamp_runs, thinned


def draw(run_dir: Path) -> Path:
    """Makes `run_dir`/run.png from the run's other files and returns its path. Bars across a
    simulated latency are the simulator's band."""
    run = FinishedRun.load(run_dir)
    log = TokenLog.from_table(run.requests)
    series = over_time(run.requests, interval_s(run.summary["duration_s"]))
    made, (rates, ttft, latency, load) = figure(2, 2, width=9, height=6)
    _rates(rates, series)
    _ttft(ttft, log, run.summary["slo"]["ttft_s"])
    gaps = log.tbt_s()  # those of 0 s, inside a chunk, have no place on a logarithmic axis
    shown = {"tbt_s": gaps[gaps > 0], "ttft_s": log.ttft_s, "e2e_s": log.e2e_s}
    for (key, values), colour in zip(shown.items(), PALETTE, strict=False):
        known = values[np.isfinite(values)]
        cdf(latency, known, color=colour, label=LATENCIES[key])
        if key != "tbt_s":  # drawn without its gaps of 0 s
            simulator_bands(latency, run, key, known, colour)
    latency.set_title("Latency")
    latency.legend()
    _load(load, series)
    made.suptitle(title(run.manifest), fontweight="bold")
    stamp_runs(made, [run])
    return save(made, run_dir / "run.png")


def _rates(axes: Axes, series: dict[str, Floats]) -> None:
    axes.set(title="Rates", xlabel="time (s)")
    axes.plot(series["time_s"], series["tokens_per_s"], color=PALETTE[0])
    axes.set_ylabel("output tokens/s", color=PALETTE[0])
    axes.set_ylim(bottom=0)
    arrivals = axes.twinx()
    edges_s = np.concatenate([[0.0], series["time_s"]])
    arrivals.stairs(series["sent_per_s"], edges_s, fill=True, color=PALETTE[1], alpha=0.35, lw=0)
    arrivals.set_ylabel("requests sent/s", color=PALETTE[1])
    arrivals.set_ylim(bottom=0)
    arrivals.grid(False)


def _ttft(axes: Axes, log: TokenLog, slo_s: float) -> None:
    axes.set(title="TTFT by arrival", xlabel="scheduled arrival (s)", ylabel="TTFT (s)")
    arrival_s, ttft_s = log.arrival_s[log.started], log.ttft_s[log.started]
    shown = thinned(len(ttft_s))
    axes.scatter(arrival_s[shown], ttft_s[shown], s=7, alpha=0.4, lw=0, color=PALETTE[0])
    window = max(11, len(ttft_s) // 50)
    if len(ttft_s) > window:
        step = max(1, window // 8)
        medians = np.median(np.lib.stride_tricks.sliding_window_view(ttft_s, window)[::step], 1)
        middles = arrival_s[window // 2 :: step][: len(medians)]
        axes.plot(middles, medians, color=PALETTE[3], label=f"P50 of {window} requests")
    axes.axhline(slo_s, color="0.3", ls="--", lw=1, label=f"SLO {slo_s:g} s")
    log_scale(axes, "y")
    axes.legend()


def _load(axes: Axes, series: dict[str, Floats]) -> None:
    axes.set(title="Requests in the system", xlabel="time (s)", ylabel="requests")
    stacked = (series["running"], series["queued"])
    colours = (PALETTE[2], PALETTE[1])
    axes.stackplot(series["time_s"], *stacked, labels=("running", "queued"), colors=colours, lw=0)
    axes.set_ylim(0, max(1.0, 1.3 * float(np.sum(stacked, axis=0).max())))
    axes.legend(loc="upper right", ncols=2)
