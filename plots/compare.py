"""Several runs side by side: TTFT and TBT distributions, TTFT and tokens over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness.metrics import over_time
from harness.report import COLUMNS, LATENCIES, number, seconds, seeds
from harness.run_folder import FinishedRun
from harness.token_log import TokenLog
from plots.style import PALETTE, cdf, figure, interval_s, log_scale, save, stamp

TOTALS = {"output_throughput_tokens_per_s": "tokens/s", "goodput_per_s": "goodput/s"}


def draw(run_dirs: Sequence[Path], out: Path) -> Path:
    """Writes the figure to `out`. The runs need not share a schedule, world or SLO."""
    runs = [FinishedRun.load(path) for path in run_dirs]
    made, (ttft, tbt, means, tokens) = figure(2, 2, width=9, height=6)
    ttft.set_title("TTFT")
    tbt.set_title("TBT, gaps above 0")
    means.set(title="Mean TTFT over time", xlabel="time (s)", ylabel="TTFT (s)")
    tokens.set(title="Output rate", xlabel="time (s)", ylabel="tokens/s")
    step_s = interval_s(max(run.summary["duration_s"] for run in runs))
    for run, label, colour in zip(runs, labels(runs), PALETTE, strict=False):
        log = TokenLog.from_table(run.requests)
        series = over_time(run.requests, step_s)
        gaps = log.tbt_s()
        cdf(ttft, log.ttft_s[log.started], color=colour, label=label)
        cdf(tbt, gaps[gaps > 0], color=colour)
        came = np.isfinite(series["mean_ttft_s"])
        means.plot(series["time_s"][came], series["mean_ttft_s"][came], color=colour)
        tokens.plot(series["time_s"], series["tokens_per_s"], color=colour)
    log_scale(means, "y")
    tokens.set_ylim(bottom=0)
    made.legend(loc="outside upper center", ncols=2)
    stamp(made, runs)
    return save(made, out)


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """System, world, hardware and seed of each; numbered where two are the same."""
    plain = [
        f"{run.manifest['choices']['system']} "
        f"({'simulated' if run.manifest['simulated'] else run.manifest['world']}, "
        f"{run.manifest['hardware']['name']}, {seeds(run.manifest)})"
        for run in runs
    ]
    return [name if plain.count(name) == 1 else f"{i}: {name}" for i, name in enumerate(plain, 1)]


def table(run_dirs: Sequence[Path]) -> Table:
    """Each metric of each run, with its ratio to the first run's."""
    runs = [FinishedRun.load(path) for path in run_dirs]
    made = Table("metric", *labels(runs), box=SIMPLE_HEAD)
    for key, name in LATENCIES.items():
        for column, statistic in COLUMNS.items():
            values = [run.summary[key][column] for run in runs]
            made.add_row(f"{name} {statistic}", *_cells(values, seconds))
    for key, name in TOTALS.items():
        made.add_row(name, *_cells([run.summary[key] for run in runs], number))
    for key in ("token", "time", "request"):
        values = [run.summary["slo_attainment"][key] for run in runs]
        made.add_row(f"SLO {key}", *_cells(values, "{:.1%}".format))
    return made


def _cells(values, show) -> list[str]:  # type: ignore[no-untyped-def]
    first = values[0]
    ratios = [f" (x{v / first:.2f})" if v is not None and first else "" for v in values]
    return ["none" if v is None else show(v) + r for v, r in zip(values, ratios, strict=True)]
