"""Fig. 11: over time, BurstGPT at the highest rate of Fig. 10: TTFT, KV, queue, throughput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.kunserve import OVER_TIME, mechanism, system
from plots.kunserve_timeline import over_time, throttled_s, timeline, timeline_rows

EXPERIMENTS = ("kunserve_fig10_burstgpt",)


def table(points: Sequence[Point]) -> pd.DataFrame:
    top = max(float(p.overrides["workload.scale.rate"]) for p in points)
    shown = [p for p in points if float(p.overrides["workload.scale.rate"]) == top]
    runs = [
        spike(timeline(point)) | {"system": system(point), "seed": point.seed,
                                  "config_hash": point.config_hash(),
                                  "mechanism": mechanism(point)}
        for point in shown
    ]  # fmt: skip
    return pd.concat([pd.DataFrame(runs), timeline_rows(shown, system)])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    return over_time(rows, OVER_TIME), (
        "Azure code arrivals, seed 0. TTFT by arrival, mean of 2 s. Memory: for KV, over what "
        "it is with nothing dropped (dashed)."
    )


def spike(found: pd.DataFrame) -> dict[str, object]:
    """TTFT at its highest after throttling over its mean before."""
    start_s = throttled_s(found)
    before = found[found.time_s < start_s].ttft_s.mean()
    after = found[found.time_s >= start_s].ttft_s.max() if np.isfinite(start_s) else np.nan
    return {"part": "spike", "throttled_s": start_s, "spike": after / before}
