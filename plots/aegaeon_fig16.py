"""Fig. 16: fragmentation of the unified KV cache in host memory, overall and by shape.

Unused bytes within slabs over the peak of the bytes allocated (§7.3). Sampled as KV is swapped, at
most each second; means are over time, each sample held until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.panels import legend_above
from plots.runs import events
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig14",)


def table(points: Sequence[Point]) -> pd.DataFrame:
    return over_time(pd.concat([_samples(point) for point in points]))


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (axes,) = figure(1, 1, width=8, height=3.8)
    shapes = ["overall", *sorted(set(rows["shape"]) - {"overall"}, key=_kilobytes)]
    setups = sorted(rows.num_models.unique())
    width = 0.8 / len(shapes)
    for i, shape in enumerate(shapes):
        of_shape = rows[rows["shape"] == shape].groupby("num_models")
        at = np.arange(len(setups)) + (i - (len(shapes) - 1) / 2) * width
        mean, peak = of_shape["mean"].mean().reindex(setups), of_shape["max"].max().reindex(setups)
        axes.bar(at, 100 * mean, width * 0.9, color=PALETTE[i], label=shape)
        axes.plot(
            at, 100 * peak, "_", color="0.25", ms=9, label="_" if i else "highest sample"
        )  # fmt: skip
    axes.axhline(20, color="0.4", ls="--", lw=0.8)
    axes.set_xticks(range(len(setups)), [f"{m} models" for m in setups])
    axes.set(ylabel="unused / peak allocated (%)", ylim=(0, None))
    axes.set_title("Fragmentation of the host's KV cache: mean over time, by KV shape")
    legend_above(made, [axes], 5)
    return made, (
        "0.1 requests/s a model; mean of the inputs. Sampled on each node as KV is swapped, at "
        "most each second; a sample holds until the next. Dashed: 20 %, below which the paper's is."
    )


def over_time(samples: pd.DataFrame) -> pd.DataFrame:
    """Mean, weighted by how long each sample holds, and max, by num_models, shape and seed.

    Takes those columns, node, start_s and fragmentation. The last sample of a node, after which
    nothing is known, counts for the max alone."""
    rows = samples.sort_values("start_s")
    held_s = -rows.groupby(["num_models", "seed", "node", "shape"]).start_s.diff(-1).fillna(0.0)
    weighted = rows.assign(held_s=held_s, area=rows.fragmentation * held_s)
    found = weighted.groupby(["num_models", "shape", "seed"]).agg(
        area=("area", "sum"), held_s=("held_s", "sum"), max=("fragmentation", "max")
    )
    found.insert(0, "mean", found.area / found.held_s)
    return found[["mean", "max"]].reset_index()


def _samples(point: Point) -> pd.DataFrame:
    assert point.path is not None
    found = events(point.path, "host_kv")
    tokens = 16 * 1024  # blocks of 16 tokens, KiB
    shapes = (found.block_bytes / tokens).map(lambda kb: "overall" if kb != kb else f"{kb:g} KB")
    peak_bytes = found.groupby([found.instance, shapes]).allocated_bytes.transform("max")
    return pd.DataFrame(
        {
            "num_models": int(point.overrides["workload.dataset.parameters.num_models"]),
            "seed": point.manifest()["seeds"]["seed"],
            "node": found.instance,
            "start_s": found.start_s,
            "shape": shapes,
            "fragmentation": found.unused_bytes / peak_bytes,
        }
    )


def _kilobytes(shape: str) -> float:
    return float(shape.removesuffix(" KB"))
