"""How well memory and GPUs are used: fragmentation of the host's KV cache (Fig. 16), and GPUs that
are busy before and after pooling (Fig. 18)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from harness.experiments.points import Point
from harness.files import read_json
from plots.figure import Panels, Points, picture
from plots.runs import events, overrides
from plots.runs import switches as num_switches
from plots.style import PALETTE


def fragmentation(points: Points) -> pd.DataFrame:
    return over_time(pd.concat([_samples(point) for point in points]))


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
    found = events(point.folder, "host_kv")
    tokens = 16 * 1024  # blocks of 16 tokens, KiB
    shapes = (found.block_bytes / tokens).map(lambda kb: "overall" if kb != kb else f"{kb:g} KB")
    peak_bytes = found.groupby([found.instance, shapes]).allocated_bytes.transform("max")
    return pd.DataFrame(
        {
            "num_models": overrides(point)["num_models"],
            "seed": point.manifest()["seeds"]["seed"],
            "node": found.instance,
            "start_s": found.start_s,
            "shape": shapes,
            "fragmentation": found.unused_bytes / peak_bytes,
        }
    )


@picture("aegaeon_fig16", fragmentation, ("aegaeon_fig14",), size=(8, 3.8), legend=5, quick="rows")
def fig16(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 16: fragmentation of the unified KV cache in host memory, overall and by shape.

    Unused bytes within slabs over the peak of the bytes allocated (§7.3). Sampled as KV is swapped,
    at most each second; means are over time, each sample held until the next one.
    """
    (panel,) = axes
    kilobytes = sorted({float(s.split()[0]) for s in rows["shape"].unique() if s != "overall"})
    shapes = ["overall", *(f"{kb:g} KB" for kb in kilobytes)]
    setups = sorted(rows.num_models.unique())
    width = 0.8 / len(shapes)
    for i, shape in enumerate(shapes):
        of_shape = rows[rows["shape"] == shape].groupby("num_models")
        at = np.arange(len(setups)) + (i - (len(shapes) - 1) / 2) * width
        mean, peak = of_shape["mean"].mean().reindex(setups), of_shape["max"].max().reindex(setups)
        panel.bar(at, 100 * mean, width * 0.9, color=PALETTE[i], label=shape)
        name = "_" if i else "highest sample"
        panel.plot(at, 100 * peak, "_", color="0.25", ms=9, label=name)
    panel.axhline(20, color="0.4", ls="--", lw=0.8)
    panel.set_xticks(range(len(setups)), [f"{m} models" for m in setups])
    panel.set(ylabel="unused / peak allocated (%)", ylim=(0, None))
    panel.set_title("Fragmentation of the host's KV cache: mean over time, by KV shape")
    return (
        "0.1 requests/s a model; mean of the inputs. Sampled on each node as KV is swapped, at "
        "most each second; a sample holds until the next. Dashed: 20 %, below which the paper's is."
    )


BIN_S, STRETCH_S = 1200.0, 36_000.0
GPUS = {"aegaeon_fig18_small": 1, "aegaeon_fig18_large": 4, "aegaeon_fig18_before": 1}  # a model's


def busy_gpus(points: Points) -> pd.DataFrame:
    """How busy GPUs are, by `_stretch` for each setup: runs whose GPUs are one line in one stretch,
    of both deployments or of one model alone."""
    found: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        found.setdefault((point.seed, overrides(point).get("rate_per_s")), []).append(point)
    return pd.concat([_stretch(of_setup) for of_setup in found.values()], ignore_index=True)


def _stretch(points: Points) -> pd.DataFrame:
    """A row per bin, the hour its middle; `token` and `mechanism` are of the whole stretch."""
    rate, seed = overrides(points[0]).get("rate_per_s"), points[0].seed
    gpus = sum(point.manifest()["hardware"]["num_devices"] for point in points)
    summaries = [read_json(point.folder / "summary.json") for point in points]
    middles = np.arange(BIN_S / 2, STRETCH_S, BIN_S)
    if rate is None:
        setup, load, label = "after", "all", f"after, {gpus} GPUs"
    else:
        setup, load = "before", "low" if rate < 0.1 else "high"
        label = f"before, {rate} requests/s"
    return pd.DataFrame(
        {
            "setup": setup, "load": load, "seed": seed, "label": label,
            "hour": (seed * STRETCH_S + middles) / 3600,
            "busy_share": sum(busy_s(point) for point in points) / gpus / BIN_S,
            "token": min(summary["slo_attainment"]["token"] for summary in summaries),
            "mechanism": sum(map(num_switches, summaries)) if setup == "after" else np.nan,
            "config_hash": " ".join(point.config_hash() for point in points),
        }
    )  # fmt: skip


def busy_s(point: Point) -> np.ndarray:
    """GPU seconds spent in batches, in each bin."""
    path, columns = point.folder / "events.parquet", ["start_s", "end_s"]
    batches = pq.read_table(path, columns=columns, filters=[("kind", "=", "run")])
    starts_s, ends_s = (batches[name].to_numpy() for name in columns)
    edges = np.arange(0.0, STRETCH_S + 1, BIN_S)
    overlap = np.minimum(ends_s[:, None], edges[1:]) - np.maximum(starts_s[:, None], edges[:-1])
    seconds: np.ndarray = np.clip(overlap, 0, None).sum(axis=0) * GPUS[point.experiment]
    return seconds


@picture("aegaeon_fig18", busy_gpus, tuple(GPUS), size=(8, 3.8), legend=3, quick=False)
def fig18(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 18: how busy GPUs are before and after pooling, over the hours of section 7.5.

    Busy is a GPU while a batch runs on it. The paper's trace is not public, and its measure is not
    defined: what can be compared is the direction. The rates are constant, so that stretches of ten
    hours, a seed each and each from an empty system, stand end to end for the 70 hours; to claims
    each is a sample.
    """
    (panel,) = axes
    for colour, (label, of_label) in zip(PALETTE, rows.groupby("label"), strict=False):
        shown = 100 * of_label.set_index("hour").busy_share.sort_index()
        panel.plot(shown.index, shown, color=colour, label=f"{label}: {shown.mean():.1f} %")
    hours = rows.seed.nunique() * STRETCH_S / 3600
    panel.set(xlabel="time (h)", ylabel="busy (%)", ylim=(0, 104), xlim=(0, hours))
    return (
        f"Share of time that a batch runs, in bins of {BIN_S / 60:.0f} minutes. {hours:.0f} hours, "
        "every ten with a seed of their own, of 28 models on one H20 and 19 on four. Not the "
        "authors' trace: the published mean rate, constant, Zipf popularity."
    )
