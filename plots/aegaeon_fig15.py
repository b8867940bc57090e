"""Fig. 15: how long switches take, by model size, and what KV transfers cost each request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.points import Point
from plots.aegaeon import architectures, events, publish, requests, stamp
from plots.style import figure, thinned

EXPERIMENTS = ("aegaeon_fig14",)
QUANTILES = np.linspace(0, 1, 101)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    served = [point for point in points if point.path is not None]
    switches = pd.concat([_switches(point) for point in served])
    kv = pd.concat([_kv(point) for point in served])
    made, (left, right) = figure(1, 2, width=9, height=3.6)
    for architecture, of_size in switches.groupby("group"):
        _cdf(left, of_size.seconds.to_numpy(), str(architecture))
    left.set(title="auto-scaling latency", xlim=(-0.02, 1.5), xlabel="seconds")
    for models, of_setup in kv.groupby("group"):
        _cdf(right, of_setup.seconds.to_numpy(), f"{models} models")
    right.set(title="KV transfer overhead of a request", xlim=(-0.02, 1.5), xlabel="seconds")
    for axes in (left, right):
        axes.legend(loc="lower right")
    stamp(
        made, points, "Switches: from the decision to the first batch of the next model, the "
        "first one of an instance left out. KV: what a request waits for its swap-ins, in all.",
    )  # fmt: skip
    loads = pd.concat([_loads(point) for point in served])
    kinds = {"switch": switches, "load": loads, "kv": kv}
    rows = [_quantiles(kind, found) for kind, found in kinds.items()]
    kinds["prefill"] = pd.concat([_prefills(point) for point in served])
    rows += [_within(f"{kind}_within", kinds[kind]) for kind in ("switch", "kv", "prefill")]
    return publish(made, pd.concat(rows), folder, Path(__file__).stem)


def _switches(point: Point) -> pd.DataFrame:
    assert point.path is not None
    found = events(point.path, "switch")
    found = found[found.before.notna()]
    names = architectures(point.path)
    return pd.DataFrame(
        {
            "seed": point.manifest()["seeds"]["seed"],
            "group": found.model.map(names),
            "seconds": found.end_s - found.start_s,
        }
    )


def _loads(point: Point) -> pd.DataFrame:
    """Loads from the model cache through the stage buffer, with nothing prefetched."""
    assert point.path is not None
    found = events(point.path, "load")
    return pd.DataFrame(
        {
            "seed": point.manifest()["seeds"]["seed"],
            "group": found.model.map(architectures(point.path)),
            "seconds": found.end_s - found.start_s,
        }
    )


def _prefills(point: Point) -> pd.DataFrame:
    """Prefill batches, which §4.2 compares with loading a model; not drawn."""
    assert point.path is not None
    found = events(point.path, "run").query("phase == 'prefill'")
    return pd.DataFrame(
        {"seed": point.manifest()["seeds"]["seed"], "seconds": found.end_s - found.start_s}
    )


def _kv(point: Point) -> pd.DataFrame:
    assert point.path is not None
    swaps = events(point.path, "swap_in")
    waited = (swaps.end_s - swaps.start_s + swaps.waited_s).groupby(swaps.request_id).sum()
    done = requests(point.path).query("status == 'completed'").request_id
    return pd.DataFrame(
        {
            "seed": point.manifest()["seeds"]["seed"],
            "group": int(point.overrides["workload.dataset.parameters.num_models"]),
            "seconds": waited.reindex(done).fillna(0.0).to_numpy(),
        }
    )


def _cdf(axes: Axes, seconds: np.ndarray, label: str) -> None:
    shown = thinned(len(seconds))
    share = 100 * (shown + 1) / len(seconds)
    axes.plot(np.sort(seconds)[shown], share, label=label)
    axes.set(ylim=(0, 102), ylabel="share (%)")


def _quantiles(kind: str, found: pd.DataFrame) -> pd.DataFrame:
    """The CDFs at whole per cents, of each seed: what the figure's CSV holds."""
    rows = []
    for (group, seed), of_both in found.groupby(["group", "seed"]):
        values = np.quantile(of_both.seconds, QUANTILES)
        rows.append(
            pd.DataFrame(
                {"kind": kind, "group": group, "seed": seed, "quantile": QUANTILES, "s": values}
            )
        )
    return pd.concat(rows)


def _within(kind: str, found: pd.DataFrame) -> pd.DataFrame:
    """Of each seed, the share that takes so long at most."""
    rows = [
        {"kind": kind, "group": f"{limit_s:g} s", "seed": seed, "s": (of_seed <= limit_s).mean()}
        for seed, of_seed in found.groupby("seed").seconds
        for limit_s in (0.1, 1.0)
    ]
    return pd.DataFrame(rows).rename(columns={"s": "share"})
