"""The most that KV memory can gain with the lengths of AzureConv and AGIEval-CoT."""

from __future__ import annotations

import pandas as pd

from plots.figure import Points, Words, text
from plots.kunserve.regime import ROOMY, UNBOUNDED, placed
from plots.kunserve.runs import point_of, slo_s, system

PLACES = {  # by conf/experiment/kunserve/point: (lengths, label)
    "azureconv": ("azureconv", "AzureConv, 33 GB"),
    "agieval_cot": ("agieval_cot", "AGIEval-CoT (SYNTHETIC), 33 GB"),
    "agieval_5245": ("agieval_cot", "AGIEval-CoT (SYNTHETIC), 16.5 GB"),
}
SHOWN = ("kunserve", "kunserve_control", "llumnix_replication")
EXPERIMENTS = (
    *UNBOUNDED[1:], "kunserve_agieval_5245", "kunserve_fig10_azureconv",
    "kunserve_fig10_agieval_cot",
)  # fmt: skip


def by_place(points: Points) -> pd.DataFrame:
    """A row per run, as kunserve_regime has them. SLO: of Fig. 10's modest load with the same
    lengths."""
    slos = {
        lengths: slo_s([
            p for p in points
            if point_of(p) == f"{lengths}_modest" and system(p) == "llumnix_replication"
        ])
        for lengths, _ in PLACES.values()
    }  # fmt: skip
    shown = [p for p in points if point_of(p) in PLACES and system(p) in SHOWN]
    rows = [placed(p, slos[PLACES[point_of(p)][0]]) for p in shown]
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


@text("kunserve_table_bound", by_place, EXPERIMENTS, head=HEAD)
def bound(rows: pd.DataFrame) -> tuple[Words, str]:
    """The most that KV memory can gain with the lengths of AzureConv and AGIEval-CoT: P99 TTFT and
    violations of the SLO with KV memory that never runs out (the bound), beside the control that
    drops nothing, Llumnix (replication) and KunServe. kunserve_regime has BurstGPT's lengths."""
    cells = []
    for name, (_, label) in PLACES.items():
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
