"""Fig. 24: PD colocation, Llama2-7B and BurstGPT, beside vLLM on all GPUs and on half.

The paper does not say on which hardware: cluster B here, 16 instances, at half of the rate that
vLLM serves on time on all of them. The right panel is ours: the GPUs that are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.blitzscale import (
    MEASURES,
    SYSTEMS,
    held,
    held_each_second,
    measured,
    row,
    runs,
    saved,
)  # fmt: skip
from plots.caption import stamp
from plots.style import cdf, figure

EXPERIMENTS = ("blitzscale_fig24",)
SHOWN = ("vllm_full", "vllm_half", "colocated")
SHOWN_SEED = 0


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = runs(points)
    rows = measured(found)
    for against in SHOWN[:-1]:
        for name in MEASURES:
            rows += saved(found, name, against, MEASURES[name], "colocated")
    made, axes = figure(1, 3, width=11, height=3.4)
    for system in SHOWN:
        label, colour, line = SYSTEMS[system]
        of_system = [run.latencies for run in found if run.system == system]
        for panel, name in ((axes[0], "ttft"), (axes[1], "tbt")):
            values = np.concatenate([getattr(latencies, name) for latencies in of_system])
            cdf(panel, values, color=colour, ls=line, label=label)
    run = next(run for run in found if (run.system, run.seed) == ("colocated", SHOWN_SEED))
    seconds, level = held_each_second(held(run.path), ["colocated", "loading"])
    axes[2].plot(seconds, level, color=SYSTEMS["colocated"][1])
    for system, gpus in (("vllm_full", 16), ("vllm_half", 8)):
        axes[2].axhline(gpus, color=SYSTEMS[system][1], ls=SYSTEMS[system][2])
    rows += [
        row(run, "GPUs held", float(value), x=float(at))
        for at, value in zip(seconds, level, strict=True)
    ]
    axes[0].set(title="TTFT", xlim=(0.01, 1.5))
    axes[1].set(title="TBT", ylabel="", xlim=(0.01, 0.3))
    axes[2].set(title="GPUs held", xlabel="seconds", ylim=(0, 17))
    axes[1].legend(loc="lower right", fontsize=7)
    stamp(
        made, points, "BurstGPT 40 times as fast, Llama2-7B, cluster B. CDFs: all seeds; GPUs "
        f"held: seed {SHOWN_SEED}.",
    )  # fmt: skip
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)
