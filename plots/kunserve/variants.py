"""What the paper leaves open, one choice at a time."""

from __future__ import annotations

import pandas as pd

from plots.figure import Panels, Points, picture
from plots.kunserve.runs import (
    LATENCIES,
    POINT,
    SYSTEM,
    SYSTEMS,
    THROTTLED,
    exchange_s,
    numbers,
    point_of,
    requests,
    waits,
)
from plots.panels import Look, bars, lines
from plots.runs import beside as beside_base
from plots.runs import config
from plots.style import PALETTE, log_scale

VARIANTS = {
    "kunserve_control": Look("control: nothing dropped", "0.5"),
    "kunserve": Look("KunServe", PALETTE[0]),
    "kunserve_first": Look("demand by the head of the line", PALETTE[2]),
    "kunserve_all": Look("demand of the whole queue", PALETTE[5]),
    "kunserve_two": Look("groups of at most two", PALETTE[9]),
    "kunserve_whole": Look("a request is one message", PALETTE[4]),
    "llumnix_prompts_first": Look("Llumnix, public engine", PALETTE[1]),
    "kunserve_artifact_control": Look("control, public engine", "0.75"),
    "kunserve_artifact": Look("KunServe, public rules", PALETTE[6]),
}
PUBLIC = ("kunserve_artifact", "kunserve_artifact_control", "llumnix_prompts_first")  # one engine
CONTROL = {  # of each: nothing dropped, on its engine
    **dict.fromkeys(VARIANTS, "kunserve_control"),
    **dict.fromkeys(PUBLIC, "kunserve_artifact_control"),
}
PLACES = {
    "gb33": "33 GB, load 0.5", "gb9": "9.4 GB, load 0.5", "gb33_busy": "33 GB, load 0.7",
    "gb33_long": "33 GB, bursts\ntwice as long", "gb9_rows": "9.4 GB, Burst-\nGPT's arrivals",
    "azureconv": "33 GB, AzureConv",
    "agieval_cot": "33 GB, AGIEval-\nCoT (SYNTH.)",
}  # fmt: skip
EXPERIMENTS = (
    "kunserve_variants", "kunserve_regime", "kunserve_variants_azureconv",
    "kunserve_fig10_azureconv", "kunserve_variants_agieval_cot", "kunserve_fig10_agieval_cot",
)  # fmt: skip
CLAIMED = (  # what claims rest on
    "kunserve", "kunserve_control", "kunserve_all", "kunserve_artifact", "llumnix_prompts_first",
)  # fmt: skip
SHOWN = {name: LATENCIES[name] for name in ("ttft_p99", "tbt_p50", "tbt_p99")}


def variants(points: Points) -> pd.DataFrame:
    rows = [
        numbers(p) | waits(p) | {"point": point_of(p), "exchange_s": exchange_s(p)} for p in points
    ]
    return beside(pd.DataFrame(rows))


def beside(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with `over_control`: P99 TTFT of the control on the same engine (CONTROL) over the
    run's; `tbt_p50_added`: P50 TBT beyond it; `memory`: the share of its waiting that is for
    memory; `false_drops`: drops where this is no more than half. `over_llumnix`: P99 TTFT of
    Llumnix on the public code's engine over the run's."""
    keys = ["system", "point", "seed"]
    memory = rows.groupby(keys[:2]).wait_memory.mean()
    others = rows.assign(system=rows.system.map(CONTROL))
    llumnix = rows.assign(system="llumnix_prompts_first")
    found = rows.assign(
        over_control=beside_base(others, rows, "ttft_p99_s", keys) / rows.ttft_p99_s,
        over_llumnix=beside_base(llumnix, rows, "ttft_p99_s", keys) / rows.ttft_p99_s,
        tbt_p50_added=rows.tbt_p50_s / beside_base(others, rows, "tbt_p50_s", keys) - 1,
        memory=beside_base(others, memory.reset_index(), "wait_memory", keys[:2]),
    )
    return found.assign(false_drops=found.mechanism.where(found.memory <= THROTTLED, 0.0))


@picture(
    "kunserve_variants", variants, EXPERIMENTS, shape=(4, 1), size=(9.5, 9.0), legend=4,
    only={POINT: PLACES, SYSTEM: VARIANTS},
    quick=(True, {POINT: ("gb33", "azureconv", "agieval_cot"), SYSTEM: CLAIMED}),
)  # fmt: skip
def of_variants(axes: Panels, rows: pd.DataFrame) -> str:
    """What the paper leaves open, one choice at a time: which queued requests count as demand, how
    large groups may be, chunks; and the public code's rules beside Llumnix on the same engine."""
    shown = {f"{number}_s": about for number, about in SHOWN.items()}
    shown["mechanism"] = ("drops (in a run)", 1.0)
    memory = rows[rows.system == "kunserve_control"].groupby("point").memory.mean()
    shares = {name: f"\n({100 * memory[name]:.0f} %)" for name in PLACES if name in memory}
    groups = {name: PLACES[name] + share for name, share in shares.items()}
    for panel, (column, (title, factor)) in zip(axes, shown.items(), strict=True):
        bars(panel, rows, "point", column, VARIANTS, factor=factor, groups=groups)
        panel.tick_params(axis="x", labelsize=8.2)
        panel.set_title(title)
    return (
        "Azure code arrivals, BurstGPT's lengths but where named. Eight instances of 14B (the last "
        "two: four), mean and range of seeds. In brackets: share of the control's waiting that is "
        "for memory. The public code runs whole prompts first before a drop."
    )


GROUPS = {
    "kunserve": VARIANTS["kunserve"]._replace(label="no limit on groups", marker="o"),
    "kunserve_two": VARIANTS["kunserve_two"]._replace(marker="P"),
    "llumnix_replication": SYSTEMS["llumnix_replication"],
}


def by_limit(points: Points) -> pd.DataFrame:
    """A row per run, with the mean TTFT and the requests/s to which the arrivals are scaled."""
    runs = [(point, config(point.folder)) for point in points]
    return pd.DataFrame([
        numbers(point) | {
            "ttft_mean_s": requests(point).ttft_s.mean(),
            "to_rate": of["workload"]["scale"]["to_rate_per_s"],
            "blocks": of["engine"]["num_kv_blocks"],
        }
        for point, of in runs
    ])  # fmt: skip


@picture("kunserve_groups", by_limit, ("kunserve_groups",), shape=(1, 2), size=(8, 3.4), legend=3)
def groups(axes: Panels, rows: pd.DataFrame) -> str:
    """Groups of any size and of at most two on the default run's cluster, by load."""
    for panel, (blocks, mine) in zip(axes, rows.groupby("blocks"), strict=True):
        lines(panel, mine, "to_rate", "ttft_mean_s", GROUPS)
        panel.set(title=f"{blocks} KV blocks of an instance", xlabel="requests/s")
    log_scale(axes[0], "y")
    axes[0].set_ylabel("mean TTFT (s)")
    return (
        "BurstGPT's first 80 arrivals, its lengths. Four instances of tiny-llama, paced as on a "
        "GPU, with slow links. Mean and range of seeds."
    )
