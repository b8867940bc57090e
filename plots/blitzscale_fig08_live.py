"""Fig. 8, measured: an instance loads from the prefill, whose KV leaves by the same NIC, or from
the decode, whose NIC only receives.

The running system on paced worker processes of this machine; `system.pruning=false` makes the naive
choice of Fig. 7 (b). `blitzscale_fig08` has the same scene simulated with the paper's models. TBT:
from a request's first token to its second, between which its KV moves; of those whose first token
came while the instance was loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import loads, scaled
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig08_live",)
SOURCES = {"true": "decode", "false": "prefill"}  # by `system.pruning`
SHOWN = ("load (s)", "P99 TBT (s)")


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for point in points:
        if point.path is not None:
            pruning = point.overrides["system.pruning"].lower()
            about = {
                "source": SOURCES[pruning], "pruning": pruning, "seed": point.seed,
                "valid": point.verdict()["status"] == "VALID", "mechanism": scaled(point),
            }  # fmt: skip
            rows += [
                about | {"quantity": name, "value": value}
                for name, value in measured(point.path, SOURCES[pruning]).items()
            ]
    found = pd.DataFrame(rows)
    return pd.concat([found, over(found)], ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=6, height=3)
    for panel, name in zip(axes, SHOWN, strict=True):
        for at, source in enumerate(SOURCES.values()):
            values = rows[(rows.quantity == name) & (rows.source == source)].value
            panel.bar(at, values.mean(), 0.6, color=PALETTE[at])
            panel.plot([at] * len(values), values, "k.")
        panel.set_xticks(range(len(SOURCES)), [f"from the {each}" for each in SOURCES.values()])
        panel.set(title=name.removesuffix(" (s)"), ylabel="seconds")
        panel.grid(False, axis="x")
    return made, "A random-weight model, paced workers. Bars: mean of seeds (dots)."


def measured(path: Path, source: str) -> dict[str, float]:
    """Of the first load. ValueError: it was not from `source`."""
    first = loads(path).sort_values("start_s").iloc[0]
    if not str(first.source).endswith({"decode": "-1", "prefill": "-0"}[source]):
        raise ValueError(f"{path}: loads from {first.source}, not from the {source}")
    times_s = pq.read_table(path / "requests.parquet", columns=["token_times_s"]).to_pandas()
    gaps_s = [
        float(times[1] - times[0])
        for times in times_s.token_times_s
        if times is not None and len(times) > 1 and first.start_s <= times[0] <= first.end_s
    ]
    return {
        "load (s)": float(first.end_s - first.start_s),
        "P99 TBT (s)": float(np.percentile(gaps_s, 99)),
        "requests meanwhile": float(len(gaps_s)),
    }


def over(rows: pd.DataFrame) -> pd.DataFrame:
    """From a prefill over from the decode, seed by seed: the same schedule."""
    shown = rows[rows.quantity.isin(SHOWN)]
    wide = shown.pivot(index=["quantity", "seed"], columns="source", values="value").dropna()
    ratio = (wide.prefill / wide.decode).reset_index(name="value")
    ratio["quantity"] = ratio.quantity.str.removesuffix(" (s)") + " over from the decode"
    less = ratio.assign(quantity=ratio.quantity + ", less one", value=ratio.value - 1)
    return pd.concat([ratio, less]).assign(source="prefill")
