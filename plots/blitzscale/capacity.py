"""The capacity that loads are a share of, and what depends on the load (sections 6 and 6.1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from harness.claims.expressions import crossing
from harness.experiments.capacity_search import Search
from harness.experiments.compose import composed
from plots.blitzscale.latency import COLOCATED
from plots.blitzscale.runs import (
    MEASURES,
    SYSTEM,
    SYSTEMS,
    WORKLOAD,
    WORKLOADS,
    Run,
    end_s,
    gpu_seconds,
    runs,
    saved,
)
from plots.figure import Panels, Points, Words, picture, text
from plots.panels import facets, lines
from plots.runs import config
from plots.runs import table as of_runs
from plots.style import log_scale

RATE = "workload.scale.rate"
CAPACITY = {
    f"blitzscale_capacity_{workload}": Search(RATE, tuple(values), share="request")
    for workload, values in {
        "burstgpt": [float(n) for n in range(8, 17)],
        "azure_code": [n / 8 for n in range(8, 17)],
        "azure_conv": [n / 2 for n in range(8, 17)],
        "burstgpt_7b": [float(n) for n in range(32, 51, 2)],
    }.items()
}
EVALUATED = {  # by workload: what it is, and the figure whose runs have half of the capacity
    **{workload: (title, "blitzscale_fig17") for workload, title in WORKLOADS.items()},
    "burstgpt_7b": ("BurstGPT, Llama2-7B, cluster B, vLLM", "blitzscale_fig24"),
}


def capacities(points: Points) -> pd.DataFrame:
    rows = of_runs(points)
    rows["workload"] = rows.experiment.str.removeprefix("blitzscale_capacity_")
    found, profile = [], config(points[0].folder)["engine"]["profile"]
    for (workload, (_, evaluation)), share in product(EVALUATED.items(), ("request", "token")):
        if workload not in set(rows.workload):
            continue
        capacity = float(crossing(rows[rows.workload == workload], "rate", share))
        used = evaluated_at(workload, evaluation, profile)
        found.append(
            {"quantity": "mean rate over capacity", "workload": workload, "seed": 0,
             "experiment": f"blitzscale_capacity_{workload}", "share": share,
             "capacity": capacity, "used": used, "value": used / capacity}
        )  # fmt: skip
    return pd.concat([rows, pd.DataFrame(found)], ignore_index=True)


@text(
    "blitzscale_table_capacity", capacities,
    tuple(f"blitzscale_capacity_{workload}" for workload in EVALUATED), searches=CAPACITY,
    head=["workload", "90 % on time, of", "factor at capacity", "evaluated at", "over capacity"],
    title="Capacity of each cluster, as a factor on the trace's rate",
)  # fmt: skip
def capacity(rows: pd.DataFrame) -> tuple[Words, str]:
    """Section 6: the serving capacity that mean request rates are half of, found once a workload:
    the largest factor on the trace's rate up to which DistServe on all GPUs has 90 % on time; under
    colocation (§6.4) vLLM. The paper counts requests that meet their SLO, and runs are at half of
    the capacity by requests. By tokens, each with its own deadline, the capacity is larger."""
    shown = rows[rows.quantity == "mean rate over capacity"]
    columns = ["workload", "share", "capacity", "used", "value"]
    cells = [
        [EVALUATED[workload][0], f"{share}s", *(f"{value:.3g}" for value in values)]
        for workload, share, *values in shown[columns].to_numpy()
    ]
    return cells, "On all GPUs without scaling. SLOs: section 3's, and a TTFT of 0.7 s for 24B."


def evaluated_at(workload: str, figure: str, profile: str) -> float:
    """The factor of that figure's runs on the trace's rate, with this engine profile."""
    group = f"experiment/blitzscale/workload@_global_={workload}"
    made = composed([f"+experiment={figure}", group])
    config = made.configured([group, f"engine.profile={profile}"])
    return float(config.workload.scale.rate)


COMPARED = ("mean TTFT", "P99 TTFT", "mean TBT")
HALF = 0.5  # of the capacity: the paper's mean rate
BOTH = ("blitzscale", "serverlessllm")
SHOWN = {
    "share of mean TTFT saved": "mean TTFT saved",
    "share of mean TBT saved": "mean TBT saved",
    "share of all GPUs' time saved": "GPU time saved",
    "requests on time": "requests on time",
}
LOADS = tuple(f"blitzscale_load_{workload}" for workload in WORKLOADS)
LIMITS = tuple(f"blitzscale_capacity_{workload}" for workload in EVALUATED)
OF_AZURE_CODE = {  # runs of the quick tier: a workload, and the ends of the search of its capacity
    WORKLOAD: ("azure_code",), SYSTEM: BOTH,
    RATE: ("0.375", "1.125", "1.5", "1.0", "2.0", "2.25", "2.5"),
}  # fmt: skip


def by_load(points: Points) -> pd.DataFrame:
    rows = _limits(points)
    of = {row["workload"]: row["capacity"] for row in rows if row["share"] == "request"}
    kept = runs([point for point in points if point.experiment not in LIMITS], BOTH)
    for _, group in groupby(sorted(kept, key=_key), _key):
        together = list(group)
        workload, rate = _key(together[0])
        about = {"rate": rate, "load": rate / of[workload]}
        made = list(saved(together, "serverlessllm", quantities=COMPARED))
        for run in together:
            made += _of_run(run)
        rows += [row | about for row in made]
    return pd.DataFrame(rows)


def _limits(points: Points) -> list[dict[str, Any]]:
    """The capacities, by requests and by tokens, of the searches among `points`."""
    found = capacities([point for point in points if point.experiment in LIMITS])
    limits = found[found.quantity == "mean rate over capacity"]
    limits = limits.assign(system=limits.workload.map(_searched))
    return [{str(k): v for k, v in row.items()} for row in limits.to_dict("records")]


def _searched(workload: str) -> str:
    """The system whose capacity is searched: all GPUs, under colocation those of vLLM."""
    return "vllm" if workload == "burstgpt_7b" else "distserve"


def _key(run: Run) -> tuple[str, float]:
    return run.workload, float(run.config()["workload"]["scale"]["rate"])


def _of_run(run: Run) -> Iterator[dict[str, Any]]:
    slo, found = run.config()["slo"], run.latencies
    late = (found.ttft > slo["ttft_s"]) | (found.tpot > slo["tbt_s"])  # of one token has no tpot
    yield run.row("requests on time", 1 - float(late.mean()))
    every = end_s(run) * run.config()["hardware"]["num_devices"]
    yield run.row("share of all GPUs' time saved", 1 - gpu_seconds(run) / every)


@picture(
    "blitzscale_load", by_load, ("blitzscale_fig17", *LOADS, *LIMITS), searches=CAPACITY,
    shape=(3, 4), size=(13, 8), legend=2, quick=("rows", OF_AZURE_CODE),
)  # fmt: skip
def load(axes: Panels, rows: pd.DataFrame) -> str:
    """Figs. 17 and 18 by load, which is the rate over the capacity by requests. Dashed: half of it,
    at which the figures' runs are; dotted: half of the capacity by tokens. BlitzScale saves GPU
    time against all GPUs, and latency against ServerlessLLM with a TTL of 5 min."""
    limits = rows[rows.quantity == "mean rate over capacity"]
    for panel, mine, workload, name in facets(axes, rows, workload=WORKLOADS, quantity=SHOWN):
        shown = BOTH if name in ("requests on time", "share of all GPUs' time saved") else BOTH[:1]
        looks = {system: SYSTEMS[system] for system in shown}
        lines(panel, mine, "load", "value", looks, factor=100)
        _half_marked(panel, limits[limits.workload == workload])
        panel.axhline(0, color="0.7", lw=0.8)
        panel.set(title=f"{WORKLOADS[workload].partition(',')[0]}: {SHOWN[name]}", ylabel="%")
    for panel in axes[-4:]:
        panel.set_xlabel("load / capacity by requests")
    return (
        "Dashed: half of the capacity by requests, where the figures are; dotted: half of it by "
        "tokens. TTFT, TBT: against S-LLM; GPU time: against all GPUs held throughout. Mean and "
        "range of five seeds."
    )


FLEETS = {  # fixed fleets beside the system that scales, by the workload of their figure
    "azure_conv": ("distserve_full", "distserve_half", "blitzscale"),
    "burstgpt_7b": COLOCATED,
}
SERVED = {"requests on time": "%", "mean TTFT": "seconds", "GPUs held": "GPUs"}
OF_7B = {
    WORKLOAD: ("burstgpt_7b",),
    RATE: ("12.25", "36.75", "49.0", "32.0", "50.0", "52.0", "54.0"),
}


def beside_fleets(points: Points) -> pd.DataFrame:
    rows = _limits(points)
    of = {row["workload"]: row["capacity"] for row in rows if row["share"] == "request"}
    for run in runs([point for point in points if point.experiment not in LIMITS]):
        workload, rate = _key(run)
        if run.system in FLEETS.get(workload, ()):
            about = {"rate": rate, "load": rate / of[workload]}
            made = [run.row("mean TTFT", MEASURES["mean TTFT"](run)), *_of_run(run)]
            made.append(run.row("GPUs held", gpu_seconds(run) / end_s(run)))
            rows += [row | about for row in made]
    return pd.DataFrame(rows)


@picture(
    "blitzscale_load_fleets", beside_fleets,
    ("blitzscale_fig17", "blitzscale_fig18", "blitzscale_load_azure_conv",
     "blitzscale_load_distserve", "blitzscale_capacity_azure_conv", "blitzscale_fig24",
     "blitzscale_load_burstgpt_7b", "blitzscale_capacity_burstgpt_7b"),
    searches=CAPACITY, shape=(2, 3), size=(10, 6), legend=3, quick=("rows", OF_7B),
)  # fmt: skip
def load_fleets(axes: Panels, rows: pd.DataFrame) -> str:
    """Figs. 18 and 24 by load: BlitzScale beside fixed fleets on all GPUs and on half. The load is
    the rate over what the fleet on all GPUs serves with 90 % of requests on time; dashed: half of
    it, where the figures are; dotted: half of the capacity by tokens."""
    limits = rows[rows.quantity == "mean rate over capacity"]
    for panel, mine, workload, name in facets(axes, rows, workload=FLEETS, quantity=SERVED):
        looks = {system: SYSTEMS[system] for system in FLEETS[workload]}
        factor = 100 if name == "requests on time" else 1
        lines(panel, mine, "load", "value", looks, factor=factor)
        _half_marked(panel, limits[limits.workload == workload])
        title = EVALUATED[workload][0].split(", cluster")[0]
        panel.set(title=f"{title}: {name}", ylabel=SERVED[name])
        if name == "mean TTFT":
            log_scale(panel, "y")
    for panel in axes[-3:]:
        panel.set_xlabel("load / capacity by requests")
    return (
        "Dashed: half of the capacity by requests, where Figs. 18 and 24 are; dotted: half of it "
        "by tokens. GPUs held: mean until the last token. Mean and range of five seeds."
    )


def _half_marked(panel: Axes, limits: pd.DataFrame) -> None:
    """Marks half of the capacity by requests, and by tokens, where it was searched."""
    if limits.empty:
        return
    by = limits.set_index("share").capacity
    panel.axvline(HALF, color="0.4", lw=0.8, ls="--")
    panel.axvline(HALF * by.token / by.request, color="0.4", lw=0.8, ls=":")
