"""What each technique adds: from ServerlessLLM to BlitzScale step by step (Fig. 20, and from an
SSD), the schedulers of a live pair, and where the time between tokens comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from plots.blitzscale.runs import (
    MEASURES,
    SYSTEMS,
    WORKLOADS,
    Run,
    compared,
    from_ssd,
    runs,
    saved,
)  # fmt: skip
from plots.figure import Panels, Points, picture
from plots.panels import Look, bars, facets
from plots.runs import beside
from plots.style import PALETTE, log_scale

STEPS = {
    "serverlessllm": "S-LLM",
    "network": "+Network",
    "multicast": "+Multi-\ncast",
    "blitzscale": "+ZigZag",
}
LATENCIES = ("TTFT", "TBT")
PERCENTILES = {"P95": ("P95", PALETTE[0]), "P99": ("P99", PALETTE[9])}


def step_by_step(points: Points) -> pd.DataFrame:
    found = runs(points, STEPS)
    for run in found:
        if run.system == "blitzscale":  # what the last step adds
            run.mechanism = float(run.scale_ups().served.astype(bool).sum())
    return pd.DataFrame([*compared(found, ()), *_added(found, STEPS)])


def _added(found: Sequence[Run], steps: Iterable[str]) -> Iterator[dict[str, Any]]:
    for before, after in pairwise(steps):
        yield from saved(found, before, after)


@picture(
    "blitzscale_fig20", step_by_step, ("blitzscale_fig17", "blitzscale_fig20"), shape=(2, 3),
    size=(9, 5), legend=2, quick="rows",
)  # fmt: skip
def fig20(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 20: P95 and P99 of TTFT and TBT from ServerlessLLM to BlitzScale, one technique after
    another. That the paper's bars are P95 is our reading: the text has no axis. Mutation comes with
    +Network."""
    shown = rows.assign(latency=rows.quantity.str.removeprefix("P95 ").str.removeprefix("P99 "))
    for panel, mine, name, workload in facets(axes, shown, latency=LATENCIES, workload=WORKLOADS):
        looks = {f"{which} {name}": Look(*look) for which, look in PERCENTILES.items()}
        bars(panel, mine, "system", "value", looks, by="quantity", groups=STEPS)
        panel.tick_params(axis="x", labelsize=8)
        panel.set(title=WORKLOADS[workload], ylabel=f"{name} (s)")
    return "Mean and range of seeds. S-LLM: TTL 5 min."


FROM_SSD = {"serverlessllm_no_room": "S-LLM,\nSSD"} | {
    name: label for name, label in STEPS.items() if name != "serverlessllm"
}
COLD = {f"{workload}_cold": title for workload, title in WORKLOADS.items()}


def steps_from_ssd(points: Points) -> pd.DataFrame:
    found = runs(points, FROM_SSD)
    rows = [*compared(found, ("serverlessllm_no_room",)), *_added(found, FROM_SSD)]
    rows += [run.row("share of loads from SSD", from_ssd(run)) for run in found]
    return pd.DataFrame(rows)


@picture(
    "blitzscale_ssd", steps_from_ssd, ("blitzscale_ssd",), shape=(2, 3), size=(9, 5), quick="rows",
)  # fmt: skip
def ssd(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 20 from an SSD, as section 6.3 has it: ServerlessLLM's hosts have no room for the model,
    so that each load reads the SSD. From empty caches."""
    names = ("mean TTFT", "P95 TTFT")
    for panel, mine, name, workload in facets(axes, rows, quantity=names, workload=COLD):
        bars(panel, mine, "system", "value", {name: ONE}, by="quantity", groups=FROM_SSD)
        panel.tick_params(axis="x", labelsize=8)
        panel.set(title=COLD[workload] if name == "mean TTFT" else "", ylabel=f"{name} (s)")
        log_scale(panel, "y")
    return (
        "Mean and range of seeds; y is logarithmic, and scales differ. S-LLM: all of its loads "
        "come from SSD. +ZigZag is BlitzScale."
    )


ONE = Look("", PALETTE[0])  # bars that their places tell apart
STOP = "stop-the-world"
DECIDING = {
    "ilp_free": "ILP-free", "ilp": "ILP", "best_effort": "best\neffort", "overlap": "overlap",
    STOP: "stop the\nworld",
}  # fmt: skip
SCHEDULED = ("burstgpt", "azure_code")
TTFTS = ("mean TTFT", "P95 TTFT")


def by_scheduler(points: Points) -> pd.DataFrame:
    rows = []
    for run in runs(points, ("blitzscale", "multicast")):
        if run.workload in SCHEDULED:
            system = run.config()["system"]
            scheduler = system["scheduler"] if system["zigzag"] else STOP
            # Live: scale-ups that sent KV before they were complete.
            if scheduler not in ("overlap", STOP):
                run.mechanism = float(run.scale_ups().served.astype(bool).sum())
            values = {name: MEASURES[name](run) for name in TTFTS}
            rows += run.rows(values, scheduler=scheduler, config_hash=run.point.config_hash())
    found = pd.DataFrame(rows)
    base = found[found.scheduler == "ilp_free"]
    ours = beside(found, base, "value", ["quantity", "workload", "seed"])
    over = found.assign(value=found.value / ours, quantity=found.quantity + " over ILP-free")
    return pd.concat([found, over], ignore_index=True)


@picture(
    "blitzscale_scheduler", by_scheduler,
    ("blitzscale_scheduler", "blitzscale_fig17", "blitzscale_fig20"), shape=(1, 4), size=(13, 3),
    quick="rows",
)  # fmt: skip
def schedulers(axes: Panels, rows: pd.DataFrame) -> str:
    """Section 5.2's schedulers in the running system, an ablation that the paper does not have:
    only what decides in a live pair differs. ILP: 40 ms are charged for each program. Stop the
    world: no live pair, as Fig. 20's +Multicast."""
    for panel, mine, workload, name in facets(axes, rows, workload=SCHEDULED, quantity=TTFTS):
        bars(panel, mine, "scheduler", "value", {name: ONE}, by="quantity", groups=DECIDING)
        panel.tick_params(axis="x", labelsize=8.3)
        panel.set(title=WORKLOADS[workload].rpartition(",")[0], ylabel=f"{name} (s)")
    return "Mean and range of seeds, at half of the capacity by requests."


PRESCALING = {
    True: Look("pre-scaling", PALETTE[0]), False: Look("no pre-scaling", PALETTE[9]),
}  # fmt: skip
GAPS = {
    "mean gap, second token": "first to second token",
    "mean gap, later tokens": "between later tokens",
}


def gaps(points: Points) -> pd.DataFrame:
    found = pd.DataFrame([row for run in runs(points) for row in _gaps(run)])
    found["load"] = np.where(found.rate == found.rate.min(), "half", "all")
    mean = found[found.quantity == "mean TBT"]
    ours, others = mean[mean.system == "blitzscale"], mean[mean.system != "blitzscale"]
    share = 1 - beside(others, ours, "value", ["prescaling", "load", "seed"]) / others.value
    saved = others.assign(
        quantity="share of mean TBT saved", against=others.system, system="blitzscale",
        value=share, mechanism=others.loads_from_ssd,
    )  # fmt: skip
    return pd.concat([found, saved], ignore_index=True)


def _gaps(run: Run) -> Iterator[dict[str, Any]]:
    """`loads_from_ssd`: how many, which is what shorter gaps are said to come from."""
    config, times = run.config(), [each for each in run.requests().token_times_s if len(each) > 1]
    second = np.array([each[1] - each[0] for each in times])
    later = np.concatenate([np.diff(each[1:]) for each in times])
    loads = run.loads()
    values = {
        "mean TBT": MEASURES["mean TBT"](run), "P99 TBT": MEASURES["P99 TBT"](run),
        "mean gap, second token": second.mean(), "mean gap, later tokens": later.mean(),
        "requests that wait over 1 s for the second token": (second > 1).mean(),
        "decodes loaded": _decodes(run),
    }  # fmt: skip
    about = {
        "prescaling": config["system"]["prescaling"], "rate": config["workload"]["scale"]["rate"],
        "loads_from_ssd": int(loads.source.str.startswith("ssd").sum()),
        "config_hash": run.point.config_hash(),
    }  # fmt: skip
    yield from run.rows(values, **about)


def _decodes(run: Run) -> int:
    """Instances that were loaded and then decoded."""
    slots = run.slots()
    loaded = slots[(slots.role == "loading") & (slots.start_s >= 0)][["instance", "end_s"]]
    decoding = slots[slots.role == "decode"][["instance", "start_s"]]
    both = loaded.merge(decoding, left_on=["instance", "end_s"], right_on=["instance", "start_s"])
    return len(both)


WAITING = {
    name: SYSTEMS[name].label.replace(", ", ",\n")
    for name in ("blitzscale", "allcache", "serverlessllm_no_room")
}


@picture(
    "blitzscale_tbt", gaps, ("blitzscale_tbt",), shape=(1, 4), size=(13, 3.2), legend=2,
    quick=False,
)  # fmt: skip
def tbt(axes: Panels, rows: pd.DataFrame) -> str:
    """Sections 6.1 and 6.3: the time between tokens on AzureCode, whose decodes "are triggered
    later", so that "the slow scale of ServerlessLLM's SSD cannot be hidden". Left: the gap from a
    request's first token to its second, in which its KV moves and it waits for a decode.
    ServerlessLLM loads all from SSD."""
    for panel, mine, load, name in facets(axes, rows, load=("half", "all"), quantity=GAPS):
        bars(
            panel, mine, "system", "value", PRESCALING, by="prescaling", factor=1000, groups=WAITING
        )
        panel.tick_params(axis="x", labelsize=8.3)
        title = f"{GAPS[name]},\n{load} of the capacity"
        panel.set(title=title, ylabel="mean gap (ms)", ylim=(0, None))
    return (
        "AzureCode, 8B, cluster B, empty caches; mean and range of seeds; scales differ. S-LLM: "
        "all of its loads come from SSD."
    )
