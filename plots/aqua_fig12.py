"""Fig. 12: a lender's load doubles, it reclaims; the borrower's tokens/s fall and come back.

(a) what it lends and who waits there, (b) tokens/s of OPT-30B, beside the same on DRAM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import STREAMING, events, nested, overrides, paged_gb, requests
from plots.aqua_fig09 import streamed
from plots.panels import Look, legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig12", "aqua_fig12_steady")
SHOWN_SEED, STEP_S = 0, 2.0
MARKS_S = (60, 120, 180)
LENT, WAITING = Look("lent", PALETTE[2]), Look("requests that wait", "0.5")


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row for each run, of long prompts beside an idle lender too, and samples of one seed."""
    runs, shown = [], []
    for point in points:
        if point.experiment == "aqua_fig12_steady":
            runs.append(streamed(point) | {"experiment": point.experiment})
            continue
        rows, system = timeline(point, "opt", "llama", STEP_S), overrides(point)["system"]
        named: dict[str, Any] = {"system": system, "seed": point.seed}
        named["experiment"] = point.experiment
        more = {"row": "run", "mechanism": paged_gb(point, system)}
        runs.append(named | summed_up(rows) | more)
        if point.seed == SHOWN_SEED:
            shown.append(rows.assign(row="time", **named))
    return pd.concat([pd.DataFrame(runs), *shown], ignore_index=True)


def timeline(point: Point, borrower: str, lender: str, step_s: float) -> pd.DataFrame:
    """In steps: what is lent, who waits for a first token, the borrower's tokens/s. `borrower`,
    `lender`: the names that requests carry."""
    opt, llama = requests(point, borrower), requests(point, lender)
    tokens = np.concatenate([np.asarray(t) for t in opt.token_times_s])
    end_s = max(tokens.max(), llama.arrival_s.max() + llama.rct_s.max())
    at_s = np.arange(0, min(end_s, 600.0), step_s)
    lent = np.zeros(len(at_s))
    leases: Iterable[Any] = events(point, "lease").itertuples()
    for lease in leases:
        lent += np.where((at_s >= lease.start_s) & (at_s < lease.end_s), lease.bytes / 1e9, 0)
    waiting = [
        int(((llama.arrival_s <= t) & (llama.arrival_s + llama.ttft_s > t)).sum()) for t in at_s
    ]
    counts, _ = np.histogram(tokens, bins=np.append(at_s, at_s[-1] + step_s))
    return pd.DataFrame(
        {"at_s": at_s, "lent_gb": lent, "waiting": waiting, "tokens_per_s": counts / step_s}
    )


def summed_up(run: pd.DataFrame) -> dict[str, float]:
    """The most that was lent and that waited; tokens/s before and in the load."""
    before = run[run.at_s.between(80, 120, inclusive="left")]
    during = run[run.at_s.between(140, 180, inclusive="left")]
    return {
        "peak_lent_gb": run.lent_gb.max(), "least_lent_gb": during.lent_gb.min(),
        "peak_waiting": run.waiting.max(), "before_tokens_per_s": before.tokens_per_s.mean(),
        "during_tokens_per_s": during.tokens_per_s.mean(),
    }  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    shown = rows[rows.row == "time"]
    made, (left, right) = figure(1, 2, width=9, height=4.0)
    waiting = lender(left, shown[shown.system == "flexgen_aqua"], "lent_gb")
    left.set(title="(a) the lender, Llama-3.1-8B", ylabel="lent (GB)")
    nested(right, shown, "at_s", "tokens_per_s", STREAMING)
    right.set(title="(b) the borrower, OPT-30B", ylabel="tokens/s")
    for panel in (left, right):
        panel.set(xlabel="seconds", ylim=(0, None))
        for at_s in MARKS_S:
            panel.axvline(at_s, color="0.6", lw=0.8, ls="--")
    legend_above(made, (left, waiting, right), 4)
    return made, (
        "OPT-30B's prompts of 8,192 tokens begin at 60 s; the lender's rate doubles from 120 to "
        f"180 s (dashed). Copies overlap. Seed {SHOWN_SEED}."
    )


def lender(panel: Axes, rows: pd.DataFrame, lent: str) -> Axes:
    """What is lent, and on an axis of its own, which is returned, how many requests wait."""
    panel.plot(rows.at_s, rows[lent], color=LENT.colour, label=LENT.label)
    waiting = panel.twinx()
    waiting.plot(rows.at_s, rows.waiting, color=WAITING.colour, lw=0.8, label=WAITING.label)
    waiting.set(ylabel="requests that wait", ylim=(0, None))
    waiting.spines["right"].set_visible(True)
    waiting.grid(visible=False)
    return waiting
