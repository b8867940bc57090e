"""Latencies by load and setting: Figs. 4, 5, 10, 12, 13 and 16, and what binds at each load."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.figure import Panels, Points, picture
from plots.kunserve.runs import (
    DATASETS,
    LATENCIES,
    OTHERS,
    OVER_TIME,
    POINT,
    PROVISIONED,
    SYSTEM,
    SYSTEMS,
    end_to_end,
    numbers,
    over,
    requests,
    violations,
    waits,
)
from plots.panels import Look, bars, lines
from plots.runs import beside, events
from plots.style import PALETTE, log_scale

SWAPS = {name: SYSTEMS[name] for name in ("vllm_kv_swap", "vllm_parameter_swap")}


def swaps(points: Points) -> pd.DataFrame:
    """Each number over recompute's, and parameter swap's over that of KV swap of as many bytes."""
    rows = pd.DataFrame([numbers(point) | {"swapped": _swapped(point)} for point in points])
    rows["hit"] = rows.swapped / rows.requests
    rows["gb"] = rows.bytes / 2**30
    without = rows[rows.system == "vllm"].set_index("seed")
    kv, least = rows[rows.system == "vllm_kv_swap"], rows[rows.gb == rows.gb.min()]
    for number in LATENCIES:
        name, value = f"{number}_s", rows[f"{number}_s"]
        rows[f"{number}_over_recompute"] = value / rows.seed.map(without[name])
        rows[f"{number}_over_kv"] = value / beside(rows, kv, name, ["gb", "seed"])
    own = beside(rows, least, "tbt_p99_s", ["system", "seed"])
    return rows.assign(tbt_p99_over_least=rows.tbt_p99_s / own)


@picture(
    "kunserve_fig04", swaps, ("kunserve_fig04", "kunserve_fig04_recompute"), shape=(1, 4),
    size=(11, 3.2), legend=3, quick="rows",
)  # fmt: skip
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: KV swap and parameter swap by how much an instance swaps, beside recompute."""
    for panel, (number, (title, factor)) in zip(axes, LATENCIES.items(), strict=True):
        lines(panel, rows, "gb", f"{number}_s", SWAPS, factor=factor)
        without = factor * rows[rows.system == "vllm"][f"{number}_s"]
        panel.axhline(without.mean(), color="0.4", lw=0.9, ls="--", label=SYSTEMS["vllm"].label)
        panel.axhspan(without.min(), without.max(), color="0.4", alpha=0.15, lw=0)
        panel.set(title=title, xlabel="GiB swapped by an instance", ylim=(0, None))
    load = rows[rows.system == "vllm"].load.mean()
    return (
        "Azure code arrivals. Eight instances of 14B, 9.4 GB (8.8 GiB) of KV each; recompute's "
        f"mean KV demand is {load:.2f} of it. Mean and range of seeds. Recompute swaps nothing."
    )


def _swapped(point: Point) -> int:
    """The number of requests whose KV was swapped out."""
    found = events(point.folder, "kv_move")
    if found.empty:
        return 0
    return int(found[found.purpose == "swap out"].requests.explode().nunique())


def pipelines(points: Points) -> pd.DataFrame:
    rows = pd.DataFrame([numbers(point) for point in points])
    return over(rows, rows.stages == 1, "one")


@picture(
    "kunserve_fig05", pipelines, ("kunserve_fig05",), shape=(1, 4), size=(11, 3.2), legend=2,
    quick="rows",
)  # fmt: skip
def fig05(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 5: why not always a pipeline: static pipelines of 2, 4 and 8 stages beside
    replication."""
    rates = rows.groupby("rate").requests_per_s.mean()
    looks = {
        rate: Look(f"{mean:.0f} requests/s", PALETTE[k])
        for k, (rate, mean) in enumerate(rates.items())
    }
    for panel, (number, (title, _)) in zip(axes, LATENCIES.items(), strict=True):
        stages = {1: "none", 2: "2", 4: "4", 8: "8"}
        bars(panel, rows, "stages", f"{number}_over_one", looks, by="rate", groups=stages)
        panel.set(title=title.partition(" (")[0], xlabel="pipeline stages")
        panel.axhline(1, color="0.4", lw=0.8, ls="--")
    axes[0].set_ylabel("over replication's (x)")
    return "Azure code arrivals. Eight instances of 14B. Mean and range of seeds."


OF_DATASETS = tuple(f"kunserve_fig10_{dataset}" for dataset in DATASETS)
AT_33_GB = (  # have BurstGPT's other rates
    "kunserve_regime", "kunserve_variants", "kunserve_fig10_migration",
)  # fmt: skip
POINTS_OF_FIG10 = (  # of other experiments those with 33 GB of KV at the testbed's bursts
    "gb33", "gb33_busy",
    *(f"{name}{load}" for name in DATASETS for load in ("", "_half", "_modest")),
)  # fmt: skip
SLO = "SLO: 5 x P50 of replication at the lowest rate."


def dataset(point: Point) -> str:
    of_its_own = point.experiment in OF_DATASETS
    return point.experiment.removeprefix("kunserve_fig10_") if of_its_own else "burstgpt"


def on_datasets(points: Points) -> pd.DataFrame:
    return end_to_end(points, "dataset", dataset=[dataset(point) for point in points])


@picture(
    "kunserve_fig10", on_datasets, (*OF_DATASETS, *AT_33_GB), shape=(5, 3), size=(7, 8.6),
    legend=3, only={POINT: POINTS_OF_FIG10, SYSTEM: SYSTEMS},
    quick=(True, {SYSTEM: ("kunserve", *OTHERS)}),
)  # fmt: skip
def fig10(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 10: end to end, 14B: latencies by demand, violations of the SLO, on three datasets."""
    for i, (name, title) in enumerate(DATASETS.items()):
        mine = axes[i :: len(DATASETS)]
        _by_demand(mine, rows[rows.dataset == name])
        for panel in mine:
            panel.set(ylabel="" if i else panel.get_title(), title="")
            panel.set_xlabel(DEMAND if panel is mine[-1] else "")
        mine[0].set_title(title)
    return (
        "Azure code arrivals. Mean and range of seeds. Demand: replication's mean; dotted: the "
        f"paper's. {SLO} 33 GB of KV. Eight instances, right: four. AzureConv's lowest demand has "
        "too few requests for P99; two points are not joined. Public code: whole prompts first; "
        f"its control and Llumnix: kunserve_variants. {_memory(rows)}"
    )


def _memory(rows: pd.DataFrame) -> str:
    """Says at which demand memory throttles."""
    short = rows[rows.throttled & (rows.system == "llumnix_replication")]
    loads = short.groupby(["dataset", "rate"]).load.mean().groupby("dataset").min()
    said = ", ".join(f"{load:.2f}" for load in loads.reindex(list(DATASETS)))
    return f"Replication waits most for memory from {said}."


DEMAND = "KV demand over memory"


def _by_demand(axes: Sequence[Axes], rows: pd.DataFrame) -> None:
    """Draws each of LATENCIES, and violations of the SLO, one panel each, by the mean KV demand
    that replication has at the same rate. Dotted: the paper's (section 2.2)."""
    replication = rows[rows.system == "llumnix_replication"]
    rows = rows.assign(demand=rows.rate.map(replication.groupby("rate").load.mean()))
    shown = {f"{number}_s": about for number, about in LATENCIES.items()}
    shown["violating"] = ("SLO violated (%)", 100.0)
    for panel, (column, (title, factor)) in zip(axes, shown.items(), strict=False):
        lines(panel, rows, "demand", column, SYSTEMS, factor=factor, apart=0)
        panel.axvline(PROVISIONED, color="0.6", lw=0.8, ls=":")
        panel.set(title=title, xlabel=DEMAND, xlim=(0, 1))
        if column.startswith("ttft"):
            log_scale(panel, "y")
        elif column.startswith("tbt"):
            panel.set_ylim(bottom=0)


SCALES = np.geomspace(0.2, 8.0, 25)  # multiples of the SLO


TWICE = "kunserve_fig12_memory"


def by_scale(points: Points) -> pd.DataFrame:
    """The rows of `end_to_end`, shares of the requests that violate SCALES times the SLO at the
    highest rate (part `scale`), and runs with twice the KV memory (part `memory`)."""
    twice = [point for point in points if point.experiment == TWICE]
    points = [point for point in points if point.experiment != TWICE]
    rows = end_to_end(points)
    parts = [rows]
    for i, row in rows[rows.rate == rows.rate.max()].iterrows():
        found = requests(points[int(str(i))])
        limits = [(scale * row.slo_ttft_s, scale * row.slo_tbt_s) for scale in SCALES]
        shares = [violations(found, *of_scale)["violating"] for of_scale in limits]
        parts.append(pd.DataFrame({"scale": SCALES, "violating": shares}).assign(
            part="scale", series=row.system, seed=row.seed, config_hash=row.config_hash
        ))  # fmt: skip
    if twice:
        found = pd.DataFrame([numbers(point) | waits(point) for point in twice])
        found = over(found, found.system == "kunserve", "kunserve")
        parts.append(found.rename(columns={"system": "series"}).assign(part="memory"))
    return pd.concat(parts)


def _larger(axes: Panels, rows: pd.DataFrame) -> str:
    _by_demand(axes, rows[rows.part.isna()])
    scales = rows[rows.part == "scale"]
    lines(axes[5], scales, "scale", "violating", OVER_TIME, by="series", factor=100)
    axes[5].set(title="violated (%), highest demand", xlabel="scale of the SLO (x)")
    log_scale(axes[5], "x")
    axes[5].set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes[5].set_xticks([], minor=True)
    memory = rows[rows.system == "llumnix_replication"].groupby("rate").wait_memory.mean()
    full = ", ".join(f"{100 * share:.0f}" for share in memory)
    public_code = "kunserve_artifact" in set(rows.system)
    engine = " The public code runs whole prompts first before a drop." if public_code else ""
    return (
        "Azure code arrivals. Four instances. Mean and range of seeds. Demand: replication's mean, "
        f"with its queue; dotted: the paper's. P99 where a run has requests enough. {SLO} KV is "
        f"full for {full} % of replication's waiting, by demand.{engine}"
    )


# End to end, 70B (Fig. 12) and 90B (Fig. 13): by demand, and violations by SLO scale.
fig12, fig13 = (
    picture(of[0], by_scale, of, shape=(2, 3), size=(9.5, 5.4), legend=4)(_larger)
    for of in (("kunserve_fig12", TWICE), ("kunserve_fig13",))
)

PLANS = {
    "throughput": Look("throughput-greedy", PALETTE[0]),
    "memory": Look("memory-greedy", PALETTE[1]),
    "exhaustive": Look("exhaustive, by the profile", PALETTE[2]),
    "best": Look("best of all configurations", PALETTE[3]),
}


def plans(points: Points) -> pd.DataFrame:
    rows = pd.DataFrame([numbers(point) for point in points])
    return pd.concat([over_best(rows), arithmetic()])


def over_best(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with each number over that of the best configuration at the same seed. `best`: the
    plan of the groups that were set and have the lowest mean P99 TTFT."""
    p99 = rows.groupby("groups").ttft_p99_s.mean()
    rows = rows.assign(plan=rows.plan.mask(rows.groups == p99.idxmin(), "best"))
    found = rows.set_index("seed")
    best = found[found.plan == "best"]
    for number in LATENCIES:
        name = f"{number}_s"
        found[f"{number}_over_best"] = found[name] / best[name].reindex(found.index)
    return found.reset_index()


@picture(
    "kunserve_fig16", plans, ("kunserve_fig16", "kunserve_fig16_groups"), shape=(1, 5),
    size=(13, 4.8), legend=4, quick=False,
)  # fmt: skip
def fig16(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 16: throughput-greedy plans (Algorithm 1), memory-greedy and exhaustive ones, and the
    best of all configurations of groups, each of which was run. Exhaustive: of all plans the one of
    least cost, by the profile."""
    for panel, (number, (title, factor)) in zip(axes, LATENCIES.items(), strict=False):
        bars(panel, rows.assign(at=0), "at", f"{number}_s", PLANS, by="plan", factor=factor)
        panel.set_xticks([])
        panel.set_title(title)
    of_groups = rows.dropna(subset=["groups"])
    p99 = of_groups.groupby("groups").ttft_p99_s.mean().sort_values(ascending=False)
    axes[4].barh([name.strip("[]") for name in p99.index], p99, color="0.6")
    axes[4].set(title="P99 TTFT (s), by groups", xlabel="s")
    axes[4].tick_params(axis="y", labelsize=8.3)
    axes[4].grid(False, axis="y")
    return (
        "Azure code arrivals. Eight instances of 14B with 9.4 GB of KV each, load 0.5. Mean and "
        "range of seeds. Right: sizes of the groups that each drop makes. Exhaustive by the "
        "profile chose the plans of throughput-greedy."
    )


def arithmetic() -> pd.DataFrame:
    """Replicas that eight instances free in four groups of two and in one of eight (§4.1)."""
    sizes = {"four groups": [2] * 4, "one group": [8]}
    freed = [float(sum(size - 1 for size in groups)) for groups in sizes.values()]
    rows = pd.DataFrame({"plan": list(sizes), "freed_replicas": freed})
    return rows.assign(seed=0, inputs="paper")


SENSITIVITY = "kunserve_table_limits"
SETTINGS = {
    "as_is": "test bed\nas it is",
    "seqs_256": "256\nsequences",
    "whole_prompts": "whole\nprompts",
    "cuda_graphs": "no launch\ncost",
    "spread_constants": "constants over\nall stages",
}


def settings(points: Points) -> pd.DataFrame:
    """A row per run; `over_kunserve`: P99 TTFT over KunServe's with the same setting and seed."""
    found = pd.DataFrame([numbers(point) for point in points]).set_index(["setting", "seed"])
    mine = found[found.system == "kunserve"].ttft_p99_s
    return found.assign(over_kunserve=found.ttft_p99_s / mine.reindex(found.index)).reset_index()


@picture(SENSITIVITY, settings, (SENSITIVITY,), size=(7, 4.4), legend=2)
def limits(axes: Panels, rows: pd.DataFrame) -> str:
    """How the comparison depends on what the paper leaves open: cap on sequences, prefill policy,
    launch cost, constants of a pipeline. kunserve_regime has the KV memory and the load."""
    looks = {name: SYSTEMS[name] for name in ("llumnix_replication", "kunserve")}
    bars(axes[0], rows, "setting", "ttft_p99_s", looks, groups=SETTINGS)
    axes[0].set(title="9.4 GB of KV, load 0.8", ylabel="P99 TTFT (s)")
    return "Azure code arrivals. Eight instances of 14B. Mean and range of two seeds."
