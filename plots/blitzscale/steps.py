"""From ServerlessLLM to BlitzScale, one technique after another: Fig. 20, and from an SSD."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from plots.blitzscale.runs import SYSTEMS, WORKLOADS, compared, from_ssd, runs, saved
from plots.figure import Panels, Points, picture
from plots.panels import over_seeds
from plots.style import log_scale

STEPS = {
    "serverlessllm": "S-LLM",
    "network": "+Network",
    "multicast": "+Multicast",
    "blitzscale": "+ZigZag",
}
LATENCIES = ("TTFT", "TBT")


def step_by_step(points: Points) -> pd.DataFrame:
    found = runs(points, STEPS)
    for run in found:
        if run.system == "blitzscale":  # what the last step adds
            run.mechanism = float(run.scale_ups().served.astype(bool).sum())
    rows = compared(found, ())
    for before, after in pairwise(STEPS):
        rows += saved(found, before, after)
    return pd.DataFrame(rows)


@picture(
    "blitzscale_fig20", step_by_step, ("blitzscale_fig17", "blitzscale_fig20"), shape=(2, 3),
    size=(9, 5),
)  # fmt: skip
def fig20(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 20: P95 and P99 of TTFT and TBT from ServerlessLLM to BlitzScale, one technique after
    another. That the paper's bars are P95 is our reading: the text has no axis. Mutation comes with
    +Network."""
    for panel, (name, workload) in zip(axes, product(LATENCIES, WORKLOADS), strict=True):
        of_panel = rows[rows.workload == workload]
        _bars(panel, of_panel[of_panel.quantity == f"P95 {name}"], STEPS, P95)
        _bars(panel, of_panel[of_panel.quantity == f"P99 {name}"], STEPS, P99)
        if name == LATENCIES[0]:
            panel.set_title(WORKLOADS[workload])
    for panel, name in zip(axes[::3], LATENCIES, strict=True):
        panel.set_ylabel(f"{name} (s)")
    return "Left bars: P95; right bars, pale: P99. Mean and range of seeds. S-LLM: TTL 5 min."


FROM_SSD = {"serverlessllm_no_room": "S-LLM,\nSSD"} | {
    name: label for name, label in STEPS.items() if name != "serverlessllm"
}
COLD = {f"{workload}_cold": title for workload, title in WORKLOADS.items()}


def steps_from_ssd(points: Points) -> pd.DataFrame:
    found = runs(points, FROM_SSD)
    rows = compared(found, ("serverlessllm_no_room",))
    for before, after in pairwise(FROM_SSD):
        rows += saved(found, before, after)
    rows += [run.row("share of loads from SSD", from_ssd(run)) for run in found]
    return pd.DataFrame(rows)


@picture("blitzscale_ssd", steps_from_ssd, ("blitzscale_ssd",), shape=(2, 3), size=(9, 5))
def ssd(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 20 from an SSD, as section 6.3 has it: ServerlessLLM's hosts have no room for the model,
    so that each load reads the SSD. From empty caches."""
    for panel, (name, workload) in zip(axes, product(("mean TTFT", "P95 TTFT"), COLD), strict=True):
        _bars(panel, rows[(rows.quantity == name) & (rows.workload == workload)], FROM_SSD)
        panel.set(title=COLD[workload] if name == "mean TTFT" else "", ylabel=f"{name} (s)")
        log_scale(panel, "y")
    return (
        "Mean and range of seeds; y is logarithmic, and scales differ. S-LLM: all of its loads "
        "come from SSD. +ZigZag is BlitzScale."
    )


ALONE: dict[str, Any] = {"width": 0.8}  # how bars are drawn
P95: dict[str, Any] = {"width": -0.4, "align": "edge"}
P99: dict[str, Any] = {"width": 0.4, "align": "edge", "alpha": 0.45}


def _bars(
    panel: Axes, rows: pd.DataFrame, names: Mapping[str, str], how: Mapping[str, Any] = ALONE
) -> None:
    """A bar for each system that `names` gives a label, with the range of seeds."""
    each = over_seeds(rows, "system", "value").loc[list(names)]
    colours = [SYSTEMS[system].colour for system in names]
    panel.bar(range(len(names)), each["mean"], color=colours, yerr=[each.below, each.above], **how)
    panel.set_xticks(range(len(names)), list(names.values()), fontsize=7)
    panel.grid(False, axis="x")
