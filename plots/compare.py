"""Several runs side by side: TTFT and TBT distributions, TTFT and tokens over time; and how each
request's TTFT and E2E differ from the first arm's, over all pairs of runs (`harness.comparing`).

Runs of different schedules, models or SLOs may be put side by side, but table and figure then say
so, and no ratio is given across what does not compare (`harness.comparing.conditions`). Bars across
a simulated TTFT are the simulator's band.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from rich.box import SIMPLE_HEAD
from rich.table import Table

from harness.comparing.arms import Arm, arms, pairs
from harness.comparing.conditions import WORK, differences, same
from harness.errors import UsageError
from harness.records.metrics import over_time
from harness.records.numbers import number, seconds
from harness.records.run_folder import FinishedRun
from harness.records.run_table import COLUMNS, LATENCIES, absent, captions, seeds
from harness.records.token_log import TokenLog
from plots.panels import simulator_bands
from plots.style import PALETTE, cdf, figure, interval_s, log_scale, save, stamp_runs, thinned


def draw(run_dirs: Sequence[Path], out: Path) -> Path:
    """Writes the figure to `out`. The runs need not share a schedule, engine or SLO."""
    if len(run_dirs) > len(PALETTE):
        raise UsageError(f"{len(run_dirs)} runs: a figure tells at most {len(PALETTE)} apart")
    runs = [FinishedRun.load(path) for path in run_dirs]
    reference, *others = arms(runs)
    paired = [(other.label, found) for other in others if (found := _pairs(reference, other))]
    strangers = [o.label for o in others if o.by_seed.keys().isdisjoint(reference.by_seed)]
    notes = [
        f"No curve by request: {each} shares no seed with the first arm." for each in strangers
    ]
    rows = 2 + bool(paired)
    made, (ttft, tbt, means, tokens, *less) = figure(rows, 2, width=9, height=3 * rows)
    ttft.set_title("TTFT")
    tbt.set_title("TBT, gaps above 0")
    means.set(title="Mean TTFT over time", xlabel="time (s)", ylabel="TTFT (s)")
    tokens.set(title="Output rate", xlabel="time (s)", ylabel="tokens/s")
    step_s = interval_s(max(run.summary["duration_s"] for run in runs))
    colours = dict(zip(runs, PALETTE, strict=False))
    for (run, colour), label in zip(colours.items(), labels(runs), strict=True):
        log = TokenLog.from_table(run.requests)
        series = over_time(run.requests, step_s)
        gaps = log.tbt_s()
        ttft_s = log.ttft_s[log.started]
        cdf(ttft, ttft_s, color=colour, label=label)
        simulator_bands(ttft, run, "ttft_s", ttft_s, colour)
        cdf(tbt, gaps[gaps > 0], color=colour)
        came = np.isfinite(series["mean_ttft_s"])
        means.plot(series["time_s"][came], series["mean_ttft_s"][came], color=colour)
        tokens.plot(series["time_s"], series["tokens_per_s"], color=colour)
    for axes, name in zip(less, ("ttft_s", "e2e_s"), strict=False):
        what = name.removesuffix("_s").upper()
        axes.set(title=f"{what} less the first arm's, by request", xlabel="seconds", ylabel="share")
        for label, of_arm in paired:
            told = f"{label} less {reference.label}, {len(of_arm)} pair{'s' * (len(of_arm) > 1)}"
            _less(axes, name, of_arm, color=colours[of_arm[0][1]], label=fill(told, 46))
        axes.axvline(0, color="0.5", lw=0.8)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22))
    log_scale(means, "y")
    tokens.set_ylim(bottom=0)
    names = ttft.get_legend_handles_labels()
    made.legend(*names, loc="outside upper center", ncols=2, fontsize=7)
    # Of arms that are paired, a pair tells what differs: seeds have a schedule each.
    of_pairs = [run for _, of_arm in paired for run in of_arm[0]]
    differ = differences(of_pairs if paired and len(paired) == len(others) else runs)
    stamp_runs(made, runs, *differ, *notes)
    return save(made, out)


def _pairs(reference: Arm, other: Arm) -> list[tuple[FinishedRun, FinishedRun]]:
    """Empty where the arms share no seed, or have served different requests."""
    try:
        return pairs(reference, other)
    except UsageError:
        return []


def _less(
    axes: Axes, name: str, paired: Sequence[tuple[FinishedRun, FinishedRun]], **line: Any
) -> None:
    """The distribution of a latency of the second runs less that of the first ones, over the
    requests of all pairs."""
    of_pairs = [
        [getattr(TokenLog.from_table(run.requests), name) for run in pair] for pair in paired
    ]
    less = np.concatenate([second - first for first, second in of_pairs])
    less = np.sort(less[np.isfinite(less)])
    shown = thinned(len(less))
    axes.plot(less[shown], (shown + 1) / max(len(less), 1), **line)


def labels(runs: Sequence[FinishedRun]) -> list[str]:
    """System, engine, hardware and seed of each, workload and model where they are not all the
    same; where two labels are, the overrides that set its arm apart, then a number."""
    found = [_label(_choices(run, runs), run) for run in runs]
    if len(set(found)) < len(found):
        told = {id(run): arm.label for arm in arms(runs) for run in arm.runs}
        found = [
            name if found.count(name) == 1 or own.startswith("system=") else _label(own, run)
            for run, own, name in zip(runs, (told[id(run)] for run in runs), found, strict=True)
        ]
    return [name if found.count(name) == 1 else f"{i}: {name}" for i, name in enumerate(found, 1)]


def _label(name: str, run: FinishedRun) -> str:
    engine = "simulated" if run.manifest["simulated"] else run.manifest["engine_name"]
    return f"{name} ({engine}, {run.manifest['hardware']['name']}, {seeds(run.manifest)})"


def _choices(run: FinishedRun, runs: Sequence[FinishedRun]) -> str:
    name = str(run.manifest["choices"]["system"])
    for group, joint in (("workload", " x "), ("model", ", ")):
        if len({other.manifest["choices"][group] for other in runs}) > 1:
            name += f"{joint}{run.manifest['choices'][group]}"
    return name


def table(run_dirs: Sequence[Path]) -> Table:
    """Each metric of each run, with its ratio to the first run's: where both ran one model on one
    schedule in one way and both are VALID, and for what an SLO decides, under one SLO."""
    runs = [FinishedRun.load(path) for path in run_dirs]
    same_work = [not run.invalid and same(run, runs[0], *WORK) for run in runs]
    same_slo = [not run.invalid and same(run, runs[0], *WORK, "SLO") for run in runs]
    said = [*differences(runs), *captions([run.manifest for run in runs])]
    made = Table("metric", *labels(runs), caption="\n".join(said), box=SIMPLE_HEAD)
    for key, name in LATENCIES.items():
        for column, statistic in COLUMNS.items():
            of_runs = [run.summary[key] for run in runs]
            values = [row.get(column) for row in of_runs]
            why = ["" if row.get(column) is not None else absent(row, column) for row in of_runs]
            made.add_row(f"{name} {statistic}", *_cells(values, seconds, same_work, why))
    rates = [run.summary["output_throughput_tokens_per_s"] for run in runs]
    made.add_row("tokens/s", *_cells(rates, number, same_work))
    rates = [run.summary["goodput_per_s"] for run in runs]
    made.add_row("goodput/s", *_cells(rates, number, same_slo))
    for key in ("token", "time", "request"):
        values = [run.summary["slo_attainment"][key] for run in runs]
        made.add_row(f"SLO {key}", *_cells(values, "{:.1%}".format, same_slo))
    return made


def _cells(
    values: Sequence[float | None], show: Callable[[float], str], compares: Sequence[bool],
    why: Sequence[str] = (),
) -> Iterator[str]:  # fmt: skip
    """Yields each value as text, with its ratio to the first where runs compare. `why` gives the
    reason for each value that is missing."""
    first = values[0] if sum(compares) > 1 else None  # a run alone has no ratio to itself
    for i, (value, comparable) in enumerate(zip(values, compares, strict=True)):
        if value is None:
            yield why[i] if why else "none"
        else:
            yield show(value) + (f" (x{value / first:.2f})" if comparable and first else "")
