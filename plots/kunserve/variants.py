"""What the paper leaves open, one choice at a time."""

from __future__ import annotations

import pandas as pd

from plots.figure import Panels, Points, picture
from plots.kunserve.runs import (
    LATENCIES,
    THROTTLED,
    exchange_s,
    numbers,
    point_of,
    system,
    waits,
)
from plots.panels import Look, bars
from plots.style import PALETTE, log_scale

VARIANTS = {
    "kunserve_control": Look("control: nothing dropped", "0.5"),
    "kunserve": Look("KunServe", PALETTE[0]),
    "kunserve_first": Look("demand by the head of the line", PALETTE[2]),
    "kunserve_two": Look("groups of at most two", PALETTE[9]),
    "kunserve_whole": Look("a request is one message", PALETTE[4]),
    "llumnix_prompts_first": Look("Llumnix, public code's engine", PALETTE[1]),
    "kunserve_artifact": Look("KunServe, public code's rules", PALETTE[6]),
}
BESIDE = dict.fromkeys(VARIANTS, "kunserve_control") | {  # what does not drop, same engine
    "kunserve_artifact": "llumnix_prompts_first"
}
PLACES = {"gb33": "33 GB, load 0.5", "gb9": "9.4 GB, load 0.5", "gb33_busy": "33 GB, load 0.7"}
SHOWN = {name: LATENCIES[name] for name in ("ttft_p99", "tbt_p50", "tbt_p99")}


def variants(points: Points) -> pd.DataFrame:
    of_variants = [p for p in points if p.experiment == "kunserve_variants"]
    seeds = {point.seed for point in of_variants}
    shown = [
        p for p in points if system(p) in VARIANTS and point_of(p) in PLACES and p.seed in seeds
    ]
    rows = [
        numbers(p) | waits(p) | {"point": point_of(p), "exchange_s": exchange_s(p)} for p in shown
    ]
    return beside(pd.DataFrame(rows))


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with `over_beside`: P99 TTFT of what does not drop, on the same engine (BESIDE), over
    the run's; `tbt_p50_added`: P50 TBT beyond it; `memory`: the share of its waiting that is for
    memory; `false_drops`: drops where this is no more than half."""
    keys = ["system", "point", "seed"]
    others = rows.assign(system=rows.system.map(BESIDE))[keys]
    theirs = rows.set_index(keys).reindex(pd.MultiIndex.from_frame(others)).reset_index()
    memory = rows.groupby(["system", "point"]).wait_memory.mean()
    found = rows.assign(
        over_beside=theirs.ttft_p99_s / rows.ttft_p99_s,
        tbt_p50_added=rows.tbt_p50_s / theirs.tbt_p50_s - 1,
        memory=memory.reindex(pd.MultiIndex.from_frame(others[keys[:2]])).to_numpy(),
    )
    return found.assign(false_drops=found.mechanism.where(found.memory <= THROTTLED, 0.0))


@picture(
    "kunserve_variants", variants, ("kunserve_variants", "kunserve_regime"), shape=(1, 4),
    size=(13, 3.6), legend=4,
)  # fmt: skip
def of_variants(axes: Panels, rows: pd.DataFrame) -> str:
    """What the paper leaves open, one choice at a time: which queued requests count as demand, how
    large groups may be, chunks; and the public code's rules beside Llumnix on the same engine."""
    at = rows.assign(at=rows.point.map({name: k for k, name in enumerate(PLACES)}))
    shown = {f"{number}_s": about for number, about in SHOWN.items()}
    shown["mechanism"] = ("drops (in a run)", 1.0)
    memory = rows[rows.system == "kunserve_control"].groupby("point").memory.mean()
    names = [f"{label}\n({100 * memory[name]:.0f} %)" for name, label in PLACES.items()]
    for panel, (column, (title, factor)) in zip(axes, shown.items(), strict=True):
        bars(panel, at, "at", column, VARIANTS, factor=factor)
        panel.set_xticks(range(len(PLACES)), names, fontsize=6.5)
        panel.set_title(title)
    log_scale(axes[0], "y")
    return (
        "Azure code arrivals, BurstGPT's lengths. Eight instances of 14B, mean and range of "
        "seeds. Load: mean KV demand over memory; in brackets: share of the control's waiting that "
        "is for memory. The public code runs whole prompts alone and first before a drop."
    )
