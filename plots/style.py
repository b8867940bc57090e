"""How every figure looks, and what every figure says of where its numbers came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from harness.files import replaced
from harness.report import origin
from harness.run_folder import FinishedRun

PALETTE = sns.color_palette("colorblind")
MAX_POINTS = 2000  # of a CDF or scatter: more cannot be told apart on paper
DPI = 160


def figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of `width` x `height` inches and its axes, row by row."""
    sns.set_theme(
        context="paper",
        style="ticks",
        palette=PALETTE,
        rc={
            "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
            "axes.titleweight": "bold", "axes.spines.top": False, "axes.spines.right": False,
            "legend.frameon": False,
        },
    )  # fmt: skip
    made, axes = plt.subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=False
    )
    return made, list(axes.flat)


def cdf(axes: Axes, values: npt.NDArray[np.float64], **line: Any) -> None:
    """Draws the empirical CDF of `values` (seconds), thinned evenly in probability."""
    if not len(values):
        return
    shown = thinned(len(values))
    axes.plot(np.sort(values)[shown], (shown + 1) / len(values), drawstyle="steps-post", **line)
    axes.set(ylim=(0, 1.02), ylabel="share", xlabel="seconds", xscale="log")
    plain_log(axes.xaxis)


def thinned(count: int) -> npt.NDArray[np.int64]:
    """At most MAX_POINTS indices, evenly spread over 0 … count − 1."""
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(np.int64))


def plain_log(axis: Axis) -> None:
    """0.01, 0.1, 1, 10 at the decades of a logarithmic axis, rather than powers of ten."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def interval_s(duration_s: float) -> float:
    """About a hundredth of `duration_s`, rounded up to 1, 2 or 5 times a power of ten."""
    wanted = max(duration_s, 1e-3) / 100
    decade = 10.0 ** np.floor(np.log10(wanted))
    return float(next(step * decade for step in (1, 2, 5, 10) if step * decade >= wanted))


def stamp(made: Figure, runs: Sequence[FinishedRun]) -> None:
    """The footer: one line per run with world or SIMULATED, hardware, seeds, SYNTHETIC, hash."""
    lines = [f"{origin(run.manifest)} · {run.manifest['config_hash']}" for run in runs]
    invalid = [run.path.name for run in runs if run.summary["verdict"]["status"] != "VALID"]
    if invalid:
        lines.append(f"INVALID: {', '.join(invalid)}")
    made.supxlabel("\n".join(dict.fromkeys(lines)), fontsize=7, color="0.35")


def save(made: Figure, path: Path) -> Path:
    with replaced(path) as temporary:
        made.savefig(temporary, dpi=DPI)
    plt.close(made)
    return path
