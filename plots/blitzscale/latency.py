"""Whole runs beside those of other systems: Figs. 17, 18 and 24."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from plots.blitzscale.runs import (
    OVER_TIME_S,
    SHOWN_SEED,
    SYSTEMS,
    WORKLOADS,
    Floats,
    Latencies,
    Run,
    compared,
    held_over_time,
    latency_cdfs,
    over_time,
    plot_cdfs,
    runs,
    saved,
)
from plots.figure import Panels, Points, picture
from plots.panels import curves, facets
from plots.style import PALETTE, log_scale

DRAWN = {name: SYSTEMS[name] for name in ("blitzscale", "serverlessllm", "allcache")}
OVER_TIME = ("requests/s", "mean TTFT (s)", "mean TBT (s)")
SILENCE_S = 5  # lines are broken where nothing comes for longer
MEANS = ("mean TTFT", "mean TBT")
HALVES = ("mean TTFT, first half", "mean TTFT, second half")
# Factors on the traces' rates, those of conf/experiment/blitzscale/workload: half of the capacity
RATES = {"burstgpt": "x 5.5", "azure_code": "x 0.75", "azure_conv": "x 4", "burstgpt_7b": "x 24.5"}


def on_three_workloads(points: Points) -> pd.DataFrame:
    found = runs(points)
    rows = compared(found, ("serverlessllm", "serverlessllm_30s", "allcache"))
    rows += saved(found, "allcache", "serverlessllm", (*MEANS, *HALVES))
    rows += _best(pd.DataFrame(rows))
    for run in found:
        rows += _spikes(run)
        if run.seed == SHOWN_SEED and run.system in DRAWN:
            rows += _over_time(run)
    return pd.DataFrame([*rows, *latency_cdfs(found, DRAWN)])


@picture(
    "blitzscale_fig17", on_three_workloads,
    ("blitzscale_fig17", "blitzscale_fig17_ttl", "blitzscale_fig17_cold"),
    shape=(5, 3), size=(7, 8.6), legend=len(DRAWN),
)  # fmt: skip
def fig17(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 17: request rate, mean TTFT and TBT over time, and their CDFs, on three workloads, after
    a warm-up. ServerlessLLM with section 3's TTL of five minutes. Numbers with the code's 30 s,
    under which alone the gap between AzureCode's bursts evicts, and numbers from empty caches, are
    in the table."""
    for i, (workload, title) in enumerate(WORKLOADS.items()):
        of_workload = rows[rows.workload == workload]
        panels = axes[i :: len(WORKLOADS)]
        for panel, name in zip(panels, OVER_TIME, strict=False):
            curves(panel, of_workload[of_workload.quantity == name], "x", "value", DRAWN)
            panel.set_title(name)
        panels[0].lines[0].set(color="0.3", lw=0.9, label="_")  # all have the same
        log_scale(panels[1], "y")
        plot_cdfs(panels[3:], of_workload, DRAWN)
        for panel in panels:
            panel.set(ylabel="" if i else panel.get_title(), title="", xlabel="seconds")
        panels[0].set_title(title)
    return (
        f"Means of {OVER_TIME_S:g} s: seed {SHOWN_SEED}; TTFT by arrival, TBT by when the token "
        "came. CDFs: all seeds. A warm-up before does not count. Load: half of the capacity by "
        f"requests with eager_2024: BurstGPT {RATES['burstgpt']} and 39 times as fast, AzureCode "
        f"{RATES['azure_code']}, AzureConv {RATES['azure_conv']}."
    )


def _over_time(run: Run) -> list[dict[str, Any]]:
    found = run.latencies
    rows: list[dict[str, Any]] = []
    series = [(found.arrival, found.ttft), (found.at, found.tbt)]
    for name, values in zip(OVER_TIME[1:], series, strict=True):
        rows += run.curve(name, *_broken(*over_time(*values, OVER_TIME_S)))
    if run.system == "blitzscale":  # all have the same
        rows += run.curve(OVER_TIME[0], *over_time(found.arrival, step_s=OVER_TIME_S))
    return rows


def _broken(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The curve with nan in each silence, which breaks the line there."""
    silent = np.flatnonzero(np.diff(x) > SILENCE_S) + 1
    return np.insert(x, silent, x[silent] - OVER_TIME_S), np.insert(y, silent, np.nan)


def _best(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Our mean over the better of ServerlessLLM's and AllCache's, the highest of the workloads, and
    the least ratio of what is saved of TTFT to what is of TBT."""
    means = rows[rows.quantity.isin(MEANS) & rows.workload.isin(list(WORKLOADS))]
    wide = means.pivot(index=["quantity", "seed", "workload"], columns="system", values="value")
    ratio = wide.blitzscale / wide[["serverlessllm", "allcache"]].min(axis=1)
    share = 1 - wide.blitzscale / wide.serverlessllm
    found = {
        f"{name} over the better one's, highest": ratio[name].groupby("seed").max()
        for name in MEANS
    }
    least = (share["mean TTFT"] / share["mean TBT"]).groupby("seed").min()
    found["share of TTFT saved over that of TBT, least"] = least
    ours = means[(means.system == "blitzscale") & (means.quantity == "mean TTFT")]
    scaled = ours.groupby("seed").mechanism.sum()
    about = {"workload": "all", "system": "blitzscale", "valid": bool(means.valid.all())}
    return [
        about | {"quantity": name, "seed": seed, "value": value, "mechanism": scaled[seed]}
        for name, values in found.items()
        for seed, value in values.items()
    ]


def _spikes(run: Run) -> Iterator[dict[str, Any]]:
    """The second with the highest mean TTFT in each half of the window, from the window's start."""
    x, y = over_time(run.latencies.arrival, run.latencies.ttft)
    for half, part in (("first", x < x.max() / 2), ("second", x >= x.max() / 2)):
        at = float(x[part][y[part].argmax()])
        yield run.row(f"second of the highest mean TTFT, {half} half", at)


OTHERS = ("distserve_full", "distserve_half", "serverlessllm", "serverlessllm_30s")
BESIDE_DISTSERVE = ("distserve_full", "distserve_half", "serverlessllm", "blitzscale")
HOLDING = ("serverlessllm", "blitzscale")
FACTOR = 5.0  # ratio of an SLO to the mean, §6.2
ROLES = {"prefill": PALETTE[2], "decode": PALETTE[1], "loading": "0.75"}


def beside_distserve(points: Points) -> pd.DataFrame:
    found = runs([p for p in points if "azure_conv" in p.overrides.values()])
    rows = compared(found, OTHERS)
    rows += _violations(found)
    for run in found:
        if run.seed == SHOWN_SEED and run.system in HOLDING:
            slots = run.slots()
            for role in ROLES:
                rows += run.curve(f"GPUs held, {role}", *held_over_time(slots, [role]))
    return pd.DataFrame([*rows, *latency_cdfs(found, BESIDE_DISTSERVE)])


@picture(
    "blitzscale_fig18", beside_distserve, ("blitzscale_fig17", "blitzscale_fig18"), shape=(1, 4),
    size=(13, 3.6), legend=len(BESIDE_DISTSERVE) + len(ROLES),
)  # fmt: skip
def fig18(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 18: latency and GPUs held, AzureConv and 24B, beside DistServe on all GPUs and on half.
    A request violates its SLO where its TTFT or its mean TBT is over 5 times the mean. The paper
    does not say whose mean: DistServe (full)'s and each system's own are both in the table."""
    plot_cdfs(axes[:2], rows, BESIDE_DISTSERVE)
    for panel, mine, system in facets(axes[2:], rows, system=HOLDING):
        levels = [mine[mine.quantity == f"GPUs held, {role}"] for role in ROLES]
        panel.stackplot(
            levels[0].x, [level.value for level in levels], colors=list(ROLES.values()),
            labels=list(ROLES), lw=0,
        )  # fmt: skip
        panel.set(title=f"GPUs held, {SYSTEMS[system].label}", xlabel="seconds", ylabel="GPUs")
        panel.set_ylim(0, 33)
    return (
        f"AzureConv {RATES['azure_conv']}, half of the capacity by requests with eager_2024; "
        f"Mistral-24B, TP 2. CDFs: all seeds; GPUs held: seed {SHOWN_SEED}. DistServe: 11 prefills "
        "and 5 decodes, and 5 and 3."
    )


def _violations(found: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Shares of requests, by both readings; and ours less DistServe (full)'s."""
    full = {run.seed: run.latencies for run in found if run.system == "distserve_full"}
    for run in found:
        theirs = full[run.seed]
        for whose, mean in (("DistServe (full)'s", theirs), ("own", run.latencies)):
            share = violating(run.latencies, mean)
            yield run.row("violations", share, against=whose)
            if run.system == "blitzscale":
                more = share - violating(theirs, theirs)
                yield run.row("violations less DistServe (full)'s", more, against=whose)


def violating(found: Latencies, mean: Latencies) -> float:
    late = found.ttft > FACTOR * mean.ttft.mean()
    slow = found.tpot > FACTOR * np.nanmean(mean.tpot)  # nan, of one token, is not
    return float((late | slow).mean())


COLOCATED = ("vllm_full", "vllm_half", "colocated")
GPUS = {"vllm_full": 16, "vllm_half": 8}


def colocation(points: Points) -> pd.DataFrame:
    found = runs(points)
    rows = compared(found, GPUS, "colocated")
    for run in found:
        if (run.system, run.seed) == ("colocated", SHOWN_SEED):
            level = held_over_time(run.slots(), ["colocated", "loading"], 1.0)
            rows += run.curve("GPUs held", *level)
    return pd.DataFrame([*rows, *latency_cdfs(found, COLOCATED)])


@picture(
    "blitzscale_fig24", colocation, ("blitzscale_fig24",), shape=(1, 3), size=(10, 3.4), legend=3
)
def fig24(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 24: PD colocation, Llama2-7B and BurstGPT, beside vLLM on all GPUs and on half. The
    paper does not say on which hardware: cluster B here, 16 instances, at half of the rate that
    vLLM serves on time on all of them. The right panel is ours: the GPUs that are held."""
    plot_cdfs(axes[:2], rows, COLOCATED)
    shown = rows[rows.quantity == "GPUs held"]
    axes[2].plot(shown.x, shown.value, color=SYSTEMS["colocated"].colour)
    for system, gpus in GPUS.items():
        axes[2].axhline(gpus, color=SYSTEMS[system].colour, ls=SYSTEMS[system].line)
    axes[2].set(title="GPUs held", xlabel="seconds", ylabel="GPUs", ylim=(0, 17))
    return (
        f"BurstGPT {RATES['burstgpt_7b']}, half of vLLM (full)'s capacity by requests with "
        "eager_2024, and 39 times as fast; Llama2-7B, cluster B. CDFs: all seeds; GPUs held: seed "
        f"{SHOWN_SEED}."
    )
