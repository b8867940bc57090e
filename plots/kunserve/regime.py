"""Where dropping pays, by the share of waiting that is for memory, and the most that KV memory can
gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.figure import Panels, Points, Words, picture, text
from plots.kunserve.runs import (
    FULL,
    POINT,
    SYSTEM,
    SYSTEMS,
    THROTTLED,
    numbers,
    point_of,
    requests,
    slo_s,
    system,
    violations,
    waits,
)
from plots.runs import events
from plots.style import PALETTE, log_scale

PLACES = {  # by conf/experiment/kunserve/point: (label, GB of KV, marker)
    "gb6_busy": ("6.3 GB, load 0.7", 6.3, "s"),
    "gb9": ("9.4 GB, load 0.5", 9.4, "o"),
    "gb9_busy": ("9.4 GB, load 0.8", 9.4, "s"),
    "gb9_long": ("9.4 GB, bursts twice as long", 9.4, "^"),
    "gb9_short": ("9.4 GB, bursts half as long", 9.4, "v"),
    "gb9_rows": ("9.4 GB, BurstGPT's arrivals", 9.4, "P"),
    "gb17": ("16.5 GB, load 0.5", 16.5, "o"),
    "gb33": ("33 GB, load 0.5: the paper's", 33.0, "*"),
    "gb33_long": ("33 GB, bursts twice as long", 33.0, "^"),
    "gb33_busy": ("33 GB, load 0.7", 33.0, "s"),
}
COLOURS = {6.3: PALETTE[6], 9.4: PALETTE[3], 16.5: PALETTE[5], 33.0: "0.15"}
AGAINST = ("kunserve_control", "llumnix_replication", "llumnix_pipeline")
SHOWN = ("kunserve", "kunserve_control", "llumnix_replication")
COARSE = ("gb6_busy", "gb9_busy", "gb9_rows", "gb33", "gb33_busy")  # places of the quick tier
MODEST = "kunserve_fig10_burstgpt"
ROOMY = "kunserve_roomy"  # the control where KV memory never runs out
UNBOUNDED = (ROOMY, "kunserve_bound_azureconv", "kunserve_bound_agieval_cot")  # experiments of it


def by_place(points: Points) -> pd.DataFrame:
    """A row per run. `memory`: share of the control's waiting that is for memory, the mean of the
    seeds of a point. KunServe's rows have the others' P99 TTFT over its own (`over_SYSTEM`), its
    P50 and P99 TBT over the control's; `throttled_…`: where most of the waiting is for memory. Why
    requests are late: `why_late`. SLO: of the modest load. System `kunserve_roomy`: the control
    with memory that never runs out, so what compute alone violates."""
    modest = [p for p in points if p.experiment == MODEST and system(p) == "llumnix_replication"]
    slo = slo_s(modest)
    rows = pd.DataFrame([placed(p, slo) for p in points if p.experiment != MODEST])
    found = rows.set_index(["point", "seed"])
    mine = found.system == "kunserve"
    for other in AGAINST:
        theirs = found[found.system == other]
        ratio = theirs.ttft_p99_s.reindex(found.index) / found.ttft_p99_s
        found[f"over_{other}"] = ratio.where(mine)
    control = found[found.system == "kunserve_control"]
    for number in ("tbt_p50", "tbt_p99"):
        added = found[f"{number}_s"] / control[f"{number}_s"].reindex(found.index) - 1
        found[f"{number}_added"] = added.where(mine)
    before = control.violating.reindex(found.index)
    found["removed_share"] = ((before - found.violating) / before).where(mine)
    memory = control.groupby("point").wait_memory.mean()
    found = found.reset_index()
    short = found.point.map(memory) > THROTTLED
    under = found[[f"over_{other}" for other in AGAINST]].where(short).add_prefix("throttled_")
    gb = found.point.map({name: gb for name, (_, gb, _) in PLACES.items()})
    return pd.concat([found.assign(memory=found.point.map(memory), gb=gb), under], axis=1)


def placed(point: Point, slo: tuple[float, float]) -> dict[str, Any]:
    """A run's row: its numbers, its point, its violations of the SLOs of TTFT and TBT, and why."""
    found = requests(point)
    roomy = {"system": ROOMY} if point.experiment in UNBOUNDED else {}
    return (
        numbers(point) | waits(point) | violations(found, *slo)
        | why_late(found, _polls(point), slo[0]) | {"point": point_of(point)} | roomy
    )  # fmt: skip


def why_late(found: pd.DataFrame, polls: pd.DataFrame, slo_ttft_s: float) -> dict[str, float]:
    """Shares of requests whose first token is late, by what their instance or group did for more
    than half of their wait: its demand exceeded its KV memory (`late_memory`), or its KV was being
    exchanged (`late_exchange`), or neither (`late_neither`). `wait_short`: of all waiting, the
    share in which demand exceeded memory. Demand counts queued requests too, so `memory` is the
    most that memory can explain."""
    if polls.empty:
        return {}
    times_s = polls.index.to_numpy()
    begun = np.searchsorted(times_s, found.arrival_s)
    ended = np.maximum(np.searchsorted(times_s, found.first_s), begun + 1)
    members = found.instance.str.split("+").explode()
    causes = {}
    for cause in ("short", "busy"):
        until = np.vstack([np.zeros(polls[cause].shape[1]), polls[cause].cumsum().to_numpy()])
        column = polls[cause].columns.get_indexer(members)
        at = members.index.to_numpy()
        last = np.minimum(ended, len(times_s))[at]
        inside = until[last, column] - until[np.minimum(begun, len(times_s))[at], column]
        of_request = pd.Series(inside / (ended - begun)[at], members.index).groupby(level=0).mean()
        causes[cause] = of_request.to_numpy()
    late = (found.ttft_s > slo_ttft_s).to_numpy()
    memory, either = causes["short"] > 0.5, causes["busy"] > 0.5
    return {
        "late_memory": (late & memory).mean(), "late_exchange": (late & ~memory & either).mean(),
        "late_neither": (late & ~memory & ~either).mean(),
        "wait_short": float((causes["short"] * found.ttft_s).sum() / found.ttft_s.sum()),
    }  # fmt: skip


def _polls(point: Point) -> pd.DataFrame:
    """By the monitor's polls, for each instance: whether the demand of its group exceeds the KV
    memory that is there (`short`), and whether this is so or KV is being exchanged (`busy`).
    Empty: the system has no monitor."""
    kv = events(point.folder, "kv")
    if kv.empty:
        return kv
    short = kv.assign(
        short=(kv.demand_bytes >= FULL * kv.capacity_bytes).astype(float),
        member=kv.instance.str.split("+"),
    )
    table = short.explode("member").pivot_table("short", "end_s", "member", aggfunc="max").fillna(0)
    busy = table.copy()
    for each in events(point.folder, "exchange").to_dict("records"):
        at = (busy.index >= each["start_s"]) & (busy.index <= each["end_s"])
        busy.loc[at, str(each["instance"]).split("+")] = 1.0
    return pd.concat({"short": table, "busy": busy}, axis=1)


@picture(
    "kunserve_regime",
    by_place,
    ("kunserve_regime", ROOMY, MODEST),
    shape=(1, 4),
    size=(13, 5.6),
    legend=4,
    quick=(True, {POINT: COARSE, SYSTEM: SHOWN}),
)
def regime(axes: Panels, rows: pd.DataFrame) -> str:
    """Where dropping pays. P99 TTFT of the control (the same system, nothing dropped) and of
    Llumnix over KunServe's, by the share of the control's waiting that is for memory; and the share
    of requests that violate the SLO, by cause."""
    mine = rows[rows.system == "kunserve"]
    for panel, other in zip(axes, AGAINST, strict=False):
        for name, (label, gb, marker) in PLACES.items():
            shown = mine[mine.point == name]
            ratio = shown[f"over_{other}"].dropna()
            if ratio.empty:
                continue
            spread = [[ratio.mean() - ratio.min()], [ratio.max() - ratio.mean()]]
            size = 13 if marker == "*" else 6
            panel.errorbar(
                100 * shown.memory.iloc[:1], [ratio.mean()], yerr=spread, fmt=marker, ms=size,
                color=COLOURS[gb], label=label, lw=1,
            )  # fmt: skip
        panel.axhline(1, color="0.4", lw=0.8, ls="--")
        panel.axvline(50, color="0.7", lw=0.8, ls=":")
        panel.set(title=SYSTEMS[other].label, xlabel="waiting for memory (%)", xlim=(-5, 100))
        log_scale(panel, "y")
        panel.sharey(axes[0])
        ticks = [0.5, 1, 2, 5, 10, 20]
        panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.set_yticks([], minor=True)
    axes[0].set(ylabel="P99 TTFT over KunServe's (x)", ylim=(0.5, 40))
    _violations(axes[3], rows)
    return (
        "Azure code arrivals but for BurstGPT's own; BurstGPT's lengths. Eight instances of 14B. "
        "Load: mean KV demand over memory (bursts: 0.5). Mean and range of "
        "seeds. Dotted: half of the waiting is for memory. SLO: 5 x P50 of the modest load. "
        "Right: C control, K KunServe, M control with memory that never runs out; late: TTFT, by "
        "what held for most of the wait."
    )


CAUSES = {
    "late_memory": ("late, demand above KV memory", PALETTE[8]),
    "late_exchange": ("late, KV being exchanged", PALETTE[9]),
    "late_neither": ("late, neither", "0.7"),
    "slow_only": ("TBT alone", "0.25"),
}


def _violations(panel: Axes, rows: pd.DataFrame) -> None:
    rows = rows.assign(slow_only=rows.violating - rows.late)
    names = list(PLACES)[::-1]
    bars = {ROOMY: "M", "kunserve": "K", "kunserve_control": "C"}
    for k, (name, letter) in enumerate(bars.items()):
        means = rows[rows.system == name].groupby("point").mean(numeric_only=True).reindex(names)
        at, begun = np.arange(len(names)) + 0.28 * (k - 1), np.zeros(len(names))
        for column, (label, colour) in CAUSES.items():
            panel.barh(at, 100 * means[column], 0.25, left=begun, color=colour, label=label)
            begun = begun + 100 * means[column].to_numpy()
        for y, x in zip(at, begun, strict=True):
            panel.text(x + 1, y, letter, fontsize=8.3, va="center")
    panel.set_yticks(range(len(names)), [PLACES[name][0] for name in names], fontsize=8.3)
    panel.grid(False, axis="y")
    panel.margins(x=0.08)
    panel.set(title="SLO violated (%)", xlabel="share of requests (%)")


BOUND_PLACES = {  # by conf/experiment/kunserve/point: (lengths, label)
    "azureconv": ("azureconv", "AzureConv, 33 GB"),
    "agieval_cot": ("agieval_cot", "AGIEval-CoT (SYNTHETIC), 33 GB"),
    "agieval_5245": ("agieval_cot", "AGIEval-CoT (SYNTHETIC), 16.5 GB"),
}
EXPERIMENTS = (
    *UNBOUNDED[1:], "kunserve_agieval_5245", "kunserve_fig10_azureconv",
    "kunserve_fig10_agieval_cot",
)  # fmt: skip


def by_lengths(points: Points) -> pd.DataFrame:
    """A row per run, as kunserve_regime has them. SLO: of Fig. 10's modest load with the same
    lengths."""
    slos = {
        lengths: slo_s([
            p for p in points
            if point_of(p) == f"{lengths}_modest" and system(p) == "llumnix_replication"
        ])
        for lengths, _ in BOUND_PLACES.values()
    }  # fmt: skip
    shown = [p for p in points if point_of(p) in BOUND_PLACES and system(p) in SHOWN]
    rows = [placed(p, slos[BOUND_PLACES[point_of(p)][0]]) for p in shown]
    return beside_bound(pd.DataFrame(rows))


def beside_bound(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with P99 TTFT of the control and of replication over KunServe's (`over_kunserve`), and
    of all over the bound's (`over_bound`): the control with memory that never runs out, system
    kunserve_roomy. `memory`: share of the control's waiting that is for memory, the mean of the
    seeds of a point."""
    found = rows.set_index(["point", "seed"])
    bases = {name: found[found.system == name] for name in ("kunserve", ROOMY, "kunserve_control")}
    for name, base in (("kunserve", "kunserve"), ("bound", ROOMY)):
        ratio = found.ttft_p99_s / bases[base].ttft_p99_s.reindex(found.index)
        found[f"over_{name}"] = ratio.where(found.system != ROOMY)
    memory = bases["kunserve_control"].groupby("point").wait_memory.mean()
    found = found.reset_index()
    return found.assign(memory=found.point.map(memory))


HEAD = [
    "lengths, KV of an instance", "load", "for memory", "P99 TTFT: control", "KunServe", "bound",
    "control / KunServe", "Llumnix / KunServe", "control / bound", "Llumnix / bound",
    "violated: control", "KunServe", "bound",
]  # fmt: skip


QUICK = {POINT: (*BOUND_PLACES, "azureconv_modest", "agieval_cot_modest"), SYSTEM: SHOWN}


@text("kunserve_table_bound", by_lengths, EXPERIMENTS, head=HEAD, quick=(True, QUICK))
def bound(rows: pd.DataFrame) -> tuple[Words, str]:
    """The most that KV memory can gain with the lengths of AzureConv and AGIEval-CoT: P99 TTFT and
    violations of the SLO with KV memory that never runs out (the bound), beside the control that
    drops nothing, Llumnix (replication) and KunServe. kunserve_regime has BurstGPT's lengths."""
    cells = []
    for name, (_, label) in BOUND_PLACES.items():
        mine = rows[rows.point == name]
        systems = dict(list(mine.groupby("system")))
        control = systems["kunserve_control"]
        three = [control, systems["kunserve"], systems[ROOMY]]
        ratios = [
            _with_range(systems[other][f"over_{base}"])
            for base in ("kunserve", "bound")
            for other in ("kunserve_control", "llumnix_replication")
        ]
        cells.append([
            label, f"{control.load.mean():.2f}", f"{100 * control.memory.mean():.0f} %",
            *(f"{each.ttft_p99_s.mean():.1f} s" for each in three), *ratios,
            *(f"{100 * each.violating.mean():.0f} %" for each in three),
        ])  # fmt: skip
    return cells, (
        "Azure code arrivals, four instances of 14B. Mean of seeds, (range). Control: KunServe "
        "that drops nothing. Bound: the control with KV memory that never runs out. Llumnix: "
        "replication. Load: mean KV demand over memory. For memory: share of the control's waiting."
        " Violated: the SLO, 5 x P50 of the modest load."
    )


def _with_range(values: pd.Series) -> str:
    return f"{values.mean():.1f} ({values.min():.1f} to {values.max():.1f})"
