"""Fig. 4: instances that ServerlessLLM scales, and those that miss the host cache, with both TTLs.

On Fig. 17's runs of BurstGPT: one model, so that a host misses it once and then again where nothing
has used it for the TTL. The paper has many models on its hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.blitzscale import SYSTEMS, WORKLOADS, row, runs
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = ("serverlessllm", "serverlessllm_30s")
SHOWN_WORKLOAD, SHOWN_SEED = "burstgpt", 0


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    made, axes = figure(1, 2, width=9, height=3.2)
    used = [point for point in points if not set(SHOWN).isdisjoint(point.overrides.values())]
    for run in runs(used):
        loads = events(run.path, "load")
        missed = loads.source.str.startswith("ssd").to_numpy()
        rows.append(row(run, "share of loads that miss", float(missed.mean())))
        rows.append(row(run, "loads", float(len(loads))))
        if (run.workload, run.seed) == (SHOWN_WORKLOAD, SHOWN_SEED):
            panel = axes[SHOWN.index(run.system)]
            bins = np.arange(0, loads.start_s.max() + 2, 2.0)
            every, _ = np.histogram(loads.start_s, bins)
            misses, _ = np.histogram(loads.start_s[missed], bins)
            panel.stairs(every, bins, color="0.7", fill=True, label="scaled")
            panel.stairs(misses, bins, color=PALETTE[3], fill=True, label="missed")
            panel.set(title=SYSTEMS[run.system][0], xlabel="seconds", ylabel="instances in 2 s")
            for name, counts in (("scaled in 2 s", every), ("missed in 2 s", misses)):
                rows += [row(run, name, n, x=x) for x, n in zip(bins, counts, strict=False)]
    axes[0].legend(loc="upper right")
    stamp(
        made,
        used,
        f"{WORKLOADS[SHOWN_WORKLOAD]}, seed {SHOWN_SEED}; the table has all three workloads.",
    )
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)
