"""What a schedule looks like: numbers, in a table, and its rate over time as a line of blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import nan

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.schedule import Schedule, shown
from workloads.trace import Ints

BLOCKS = " ▁▂▃▄▅▆▇█"
PLOT_COLUMNS = 60
SHOWN_MODELS = 8


@dataclass(slots=True)
class Arrivals:
    """nan where the schedule is too short to say."""

    bin_s: float
    peak_to_mean: float  # of the requests in a bin
    gap_cv: float  # standard deviation / mean of the gaps between arrivals
    dispersion: float  # variance / mean of the requests in a bin; 1 for Poisson


def measure(schedule: Schedule) -> Arrivals:
    """Bins are minutes, or seconds in a schedule of under ten minutes, counted from the first
    arrival; the last bin, which the schedule does not fill, is left out."""
    bin_s = 60.0 if schedule.duration_s >= 600 else 1.0
    elapsed_s = schedule.arrival_s - schedule.arrival_s[0]
    num_bins = int(elapsed_s[-1] // bin_s)
    if num_bins < 2:
        return Arrivals(bin_s, nan, nan, nan)
    counts = np.bincount((elapsed_s // bin_s).astype(np.int64))[:num_bins]
    gaps_s = np.diff(elapsed_s)
    return Arrivals(
        bin_s, peak_to_mean=float(counts.max() / counts.mean()),
        gap_cv=float(gaps_s.std() / gaps_s.mean()),
        dispersion=float(counts.var() / counts.mean()),
    )  # fmt: skip


def print_table(name: str, schedule: Schedule, console: Console) -> None:
    about, arrivals = schedule.provenance, measure(schedule)
    unit = "minute" if arrivals.bin_s == 60 else "second"
    kinds = shown(about.synthetic)
    title = f"{name} ({kinds})" if kinds else name
    table = Table(title=title, show_header=False, title_justify="left", title_style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    rows = [
        ("requests", f"{len(schedule):,}"),
        ("span", f"{schedule.duration_s:,.1f} s"),
        ("mean rate", f"{schedule.rate_per_s:.4g} req/s"),
        (f"peak {unit} / mean", f"{arrivals.peak_to_mean:.2f}"),
        ("gap cv", f"{arrivals.gap_cv:.2f} (Poisson 1)"),
        (f"index of dispersion per {unit}", f"{arrivals.dispersion:.2f} (Poisson 1)"),
        ("prompt tokens", describe_lengths(schedule.prompt_tokens)),
        ("output tokens", describe_lengths(schedule.output_tokens)),
        ("models", describe_models(schedule.model)),
        ("source", about.source),
        ("origin", about.origin),
        ("licence", about.licence),
        ("source sha256", about.source_sha256 or "none: generated"),
        ("schedule sha256", schedule.sha256()),
        ("file", about.file),
        ("not a recording", kinds or "all of it is one"),
        ("steps", "\n".join(f"{i}. {step}" for i, step in enumerate(about.steps, 1)) or "none"),
    ]
    for label, value in rows:
        table.add_row(label, escape(value))
    console.print(table)
    console.print(terminal_plot(schedule), soft_wrap=True, markup=False, highlight=False)


def describe_lengths(tokens: Ints) -> str:
    p50, p90, p99 = np.percentile(tokens, [50, 90, 99])
    return (
        f"mean {tokens.mean():,.0f}  P50 {p50:,.0f}  P90 {p90:,.0f}  P99 {p99:,.0f}  "
        f"max {tokens.max():,}"
    )


def describe_models(models: list[str]) -> str:
    ranked = Counter(models).most_common()
    shares = [f"{name} {count / len(models):.1%}" for name, count in ranked[:SHOWN_MODELS]]
    rest = f" and {len(ranked) - SHOWN_MODELS} more" if len(ranked) > SHOWN_MODELS else ""
    return f"{len(ranked)}: {', '.join(shares)}{rest}"


def terminal_plot(schedule: Schedule) -> str:
    end_s = max(float(schedule.arrival_s[-1]), 1e-3)
    counts, edges_s = np.histogram(schedule.arrival_s, PLOT_COLUMNS, (0.0, end_s))
    rate_per_s = counts / np.diff(edges_s)
    level = np.ceil(rate_per_s / rate_per_s.max() * (len(BLOCKS) - 1)).astype(int)
    bars = "".join(BLOCKS[i] for i in level)
    return (
        f"rate  {bars}  peak {rate_per_s.max():.3g} req/s in {edges_s[1]:.3g} s\n"
        f"      0 s{f'{edges_s[-1]:,.0f} s':>{PLOT_COLUMNS - 3}}"
    )
