"""A lender's load grows, it reclaims its memory, and the borrower's tokens/s fall and come back
(Fig. 12), simulated and live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aqua import STREAMING, paged_gb, requests
from plots.aqua.prefix import streamed
from plots.figure import Panels, Points, picture
from plots.panels import curves, legend_above
from plots.runs import events, overrides
from plots.style import PALETTE

SHOWN_SEED, STEP_S, LIVE_STEP_S = 0, 2.0, 0.25
MARKS_S = (60, 120, 180)


def timeline(point: Point, borrower: str, lender: str, step_s: float) -> pd.DataFrame:
    """What is lent, who waits for a first token and the borrower's tokens/s, in steps of `step_s`.
    `borrower`, `lender`: the names that requests carry."""
    opt, llama = requests(point, borrower), requests(point, lender)
    tokens = np.concatenate([np.asarray(t) for t in opt.token_times_s])
    end_s = max(tokens.max(), llama.arrival_s.max() + llama.rct_s.max())
    at_s = np.arange(0, min(end_s, 600.0), step_s)
    lent = np.zeros(len(at_s))
    leases: Iterable[Any] = events(point.folder, "lease").itertuples()
    for lease in leases:
        lent += np.where((at_s >= lease.start_s) & (at_s < lease.end_s), lease.bytes / 1e9, 0)
    waiting = [
        int(((llama.arrival_s <= t) & (llama.arrival_s + llama.ttft_s > t)).sum()) for t in at_s
    ]
    counts, _ = np.histogram(tokens, bins=np.append(at_s, at_s[-1] + step_s))
    return pd.DataFrame(
        {"at_s": at_s, "lent_gb": lent, "waiting": waiting, "tokens_per_s": counts / step_s}
    )


def simulated(points: Points) -> pd.DataFrame:
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


def summed_up(run: pd.DataFrame) -> dict[str, float]:
    """The most that was lent and that waited; tokens/s before and in the load, and once all is lent
    again."""
    before = run[run.at_s.between(80, 120, inclusive="left")]
    during = run[run.at_s.between(140, 180, inclusive="left")]
    back = run[(run.at_s >= 180) & (run.lent_gb > 0) & (run.lent_gb >= run.lent_gb.max())].at_s
    # 40 s, as before and in the load, from when the borrower has had time to move.
    after = run[run.at_s.between(back.min() + 10, back.min() + 50, inclusive="left")]
    return {
        "peak_lent_gb": run.lent_gb.max(), "least_lent_gb": during.lent_gb.min(),
        "peak_waiting": run.waiting.max(), "before_tokens_per_s": before.tokens_per_s.mean(),
        "during_tokens_per_s": during.tokens_per_s.mean(),
        "after_tokens_per_s": after.tokens_per_s.mean(), "back_s": back.min(),
        "recovered": after.tokens_per_s.mean() / before.tokens_per_s.mean(),
    }  # fmt: skip


def lender(panel: Axes, rows: pd.DataFrame, lent: str) -> Axes:
    """Draws what is lent, and on an axis of its own, which is returned, how many requests wait."""
    panel.plot(rows.at_s, rows[lent], color=PALETTE[0], label="lent")
    waiting = panel.twinx()
    waiting.plot(rows.at_s, rows.waiting, color="0.5", lw=0.8, label="requests that wait")
    waiting.set(ylabel="requests that wait", ylim=(0, None))
    waiting.spines["right"].set_visible(True)
    waiting.grid(visible=False)
    return waiting


@picture(
    "aqua_fig12", simulated, ("aqua_fig12", "aqua_fig12_steady"), shape=(1, 2), size=(9, 4.0),
    quick="rows",
)  # fmt: skip
def fig12(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 12: a lender's load doubles, it reclaims; the borrower's tokens/s fall and come back.

    (a) what it lends and who waits there, (b) tokens/s of OPT-30B, beside the same on DRAM.
    """
    left, right = axes
    shown = rows[rows.row == "time"]
    waiting = lender(left, shown[shown.system == "flexgen_aqua"], "lent_gb")
    left.set(title="(a) the lender, Llama-3.1-8B", ylabel="lent (GB)")
    curves(right, shown, "at_s", "tokens_per_s", STREAMING)
    right.set(title="(b) the borrower, OPT-30B", ylabel="tokens/s")
    for panel in axes:
        panel.set(xlabel="seconds", ylim=(0, None))
        for at_s in MARKS_S:
            panel.axvline(at_s, color="0.6", lw=0.8, ls="--")
    legend_above(left.figure, (left, waiting, right), 4)
    return (
        "OPT-30B's prompts of 8,192 tokens begin at 60 s; the lender's rate doubles from 120 to "
        "180 s (dashed). Copies overlap. It lends half of its KV memory, an assumption; the paper "
        f"draws what is free. Seed {SHOWN_SEED}."
    )


# What copies for each purpose add to what is paged to each place.
SIGNS = {
    "lease": {
        "page out to lease": 1, "page in from lease": -1,
        "migrate to DRAM": -1, "migrate to lease": 1,
    },
    "DRAM": {
        "page out to DRAM": 1, "page in from DRAM": -1,
        "migrate to DRAM": 1, "migrate to lease": -1,
    },
}  # fmt: skip
COLOURS = {"lease": PALETTE[2], "DRAM": PALETTE[1]}


def live(points: Points) -> pd.DataFrame:
    (point,) = points
    rows = timeline(point, "borrower", "lender", LIVE_STEP_S)
    rows = rows.assign(**{f"{place}_mb": paged_mb(point, rows.at_s, place) for place in SIGNS})
    run = {"row": "run", "peak_lent_gb": rows.lent_gb.max(), "mechanism": paged_gb(point, "aqua")}
    both = pd.concat([pd.DataFrame([run]), rows.assign(row="time")], ignore_index=True)
    return both.assign(system="aqua", seed=point.seed)


def paged_mb(point: Point, at_s: pd.Series, place: str) -> np.ndarray:
    """Megabytes of KV that lie in `place` at each time, counted from the ends of copies. Those of a
    request that ends or is evicted while it is paged stay counted."""
    moves = events(point.folder, "kv_move").sort_values("end_s", kind="stable")
    change = moves.bytes * moves.purpose.map(SIGNS[place]).fillna(0)
    held = np.append(0.0, change.cumsum().to_numpy(float))
    return held[np.searchsorted(moves.end_s.to_numpy(float), at_s, side="right")] / 1e6


@picture("aqua_fig12_live", live, ("aqua_live_elastic",), shape=(1, 3), size=(10, 3.6))
def fig12_live(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 12 from a live run: a burst reaches the lender, it asks its memory back, the borrower's
    tensors go to DRAM and come back.

    (a) what is lent, and requests that wait at the lender; (b) the borrower's paged KV by place;
    (c) its tokens/s.
    """
    shown = rows[rows.row == "time"].assign(lent_mb=1e3 * rows.lent_gb)
    waiting = lender(axes[0], shown, "lent_mb")
    axes[0].set(title="(a) the lender", ylabel="lent (MB)")
    for place, colour in COLOURS.items():
        axes[1].plot(shown.at_s, shown[f"{place}_mb"], color=colour, label=f"in {place}")
    axes[1].set(title="(b) the borrower's paged KV", ylabel="MB")
    axes[2].plot(shown.at_s, shown.tokens_per_s, color=PALETTE[0], label="tokens/s")
    axes[2].set(title="(c) the borrower", ylabel="tokens/s")
    for panel in axes:
        panel.set(xlabel="seconds", ylim=(0, None))
    legend_above(axes[0].figure, (axes[0], waiting, axes[1]), 4)
    return "Two random-weight models on paced workers, one run."
