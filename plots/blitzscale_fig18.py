"""Fig. 18: latency and GPUs held, AzureConv and 24B, beside DistServe on all GPUs and on half.

A request violates its SLO where its TTFT or its mean TBT is over 5 times the mean. The paper does
not say whose mean: DistServe (full)'s and each system's own are both in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.blitzscale import (
    MEASURES,
    SYSTEMS,
    Latencies,
    Run,
    held,
    held_each_second,
    measured,
    row,
    runs,
    saved,
)  # fmt: skip
from plots.caption import stamp
from plots.style import PALETTE, cdf, figure

EXPERIMENTS = ("blitzscale_fig17", "blitzscale_fig18")
SHOWN = ("distserve_full", "distserve_half", "serverlessllm", "blitzscale")
OTHERS = ("distserve_full", "distserve_half", "serverlessllm", "serverlessllm_30s")
FACTOR = 5.0  # §6.2
ROLES = {"prefill": PALETTE[0], "decode": PALETTE[1], "loading": PALETTE[7]}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    used = [p for p in points if "azure_conv" in p.overrides.values()]
    found = runs(used)
    rows = measured(found)
    for against in OTHERS:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name])
    rows += list(violations(found))
    made, axes = figure(1, 4, width=13, height=3.6)
    for system in SHOWN:
        of_system = [run for run in found if run.system == system]
        label, colour, line = SYSTEMS[system]
        for panel, name in ((axes[0], "ttft"), (axes[1], "tbt")):
            values = np.concatenate([getattr(run.latencies, name) for run in of_system])
            cdf(panel, values, color=colour, ls=line, label=label)
    for panel, system in ((axes[2], "serverlessllm"), (axes[3], "blitzscale")):
        run = next(run for run in found if (run.system, run.seed) == (system, 0))
        rows += _gpus(panel, run)
    axes[0].set_title("TTFT")
    axes[1].set(title="TBT", ylabel="")
    axes[1].legend(loc="lower right", fontsize=7)
    axes[3].legend(loc="lower right", fontsize=7, frameon=True)
    stamp(
        made, used, "AzureConv, Mistral-24B, TP 2. CDFs: all seeds; GPUs held: seed 0. DistServe: "
        "11 prefills and 5 decodes, and 5 and 3.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def violations(found: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """Shares of requests, by both readings; and ours less DistServe (full)'s."""
    full = {run.seed: run for run in found if run.system == "distserve_full"}
    for run in found:
        for whose, mean in (
            ("DistServe (full)'s", full[run.seed].latencies),
            ("own", run.latencies),
        ):
            share = violating(run.latencies, mean)
            yield row(run, "violations", share, against=whose)
            if run.system == "blitzscale":
                theirs = violating(full[run.seed].latencies, full[run.seed].latencies)
                yield row(run, "violations less DistServe (full)'s", share - theirs, against=whose)


def violating(found: Latencies, mean: Latencies) -> float:
    late = found.ttft > FACTOR * mean.ttft.mean()
    slow = found.tpot > FACTOR * np.nanmean(mean.tpot)  # nan, of one token, is not
    return float((late | slow).mean())


def _gpus(panel: Axes, run: Run) -> list[dict[str, Any]]:
    slots = held(run.path)
    levels = {role: held_each_second(slots, [role]) for role in ROLES}
    seconds = levels["prefill"][0]
    panel.stackplot(
        seconds, [level for _, level in levels.values()], colors=list(ROLES.values()),
        labels=list(ROLES), lw=0,
    )  # fmt: skip
    panel.set(title=f"GPUs held, {SYSTEMS[run.system][0]}", xlabel="seconds", ylim=(0, 33))
    return [
        row(run, f"GPUs held, {role}", value, x=at)
        for role, (x, y) in levels.items()
        for at, value in zip(x, y, strict=True)
    ]
