"""Fig. 15: how long switches take, by model, and what KV transfers cost each request.

Above simulated, of 16 H800; below measured, on real workers of the machine that the footer names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import architectures, events, publish, requests
from plots.caption import stamp
from plots.style import figure, log_scale, thinned

EXPERIMENTS = ("aegaeon_fig14", "aegaeon_fig15_live")
QUANTILES = np.linspace(0, 1, 101)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(2, 2, width=9, height=6.4)
    rows = []
    for (engine, said), panels in zip(
        {"sim": "simulated", "torch": "measured"}.items(), (axes[:2], axes[2:]), strict=True
    ):
        of_engine = [
            p for p in points if p.path is not None and p.manifest()["engine_name"] == engine
        ]
        kinds = {
            kind: pd.concat([found(point) for point in of_engine])
            for kind, found in
            {"switch": _switches, "load": _loads, "kv": _kv, "prefill": _prefills}.items()
        }  # fmt: skip
        _panel(panels[0], kinds["switch"], f"auto-scaling latency, {said}", "{}")
        _panel(panels[1], kinds["kv"], f"KV transfer overhead of a request, {said}", "{} models")
        tables = [_quantiles(kind, kinds[kind]) for kind in ("switch", "load", "kv")]
        tables += [_within(f"{kind}_within", kinds[kind]) for kind in ("switch", "kv", "prefill")]
        rows.append(pd.concat(tables).assign(engine=engine))
    for panel in axes[:2]:
        panel.set(xlim=(-0.02, 1.5))
    for panel in axes[2:]:
        log_scale(panel, "x")
    stamp(
        made, points, "Switches: from the decision to the first batch of the next model, the "
        "first one of an instance left out. KV: what a request waits for its swap-ins, in all. "
        "Measured: three inputs of eight models with random weights, on one prefill and one "
        "decode instance.",
    )  # fmt: skip
    return publish(made, pd.concat(rows), folder, Path(__file__).stem)


def _panel(axes: Axes, found: pd.DataFrame, title: str, label: str) -> None:
    for group, of_group in found.groupby("group"):
        _cdf(axes, of_group.seconds.to_numpy(), label.format(group))
    axes.set(title=title, xlabel="seconds")
    axes.legend(loc="lower right")


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
    config = yaml.safe_load((point.path / "config.yaml").read_text())
    swaps = events(point.path, "swap_in")
    waited = (swaps.end_s - swaps.start_s + swaps.waited_s).groupby(swaps.request_id).sum()
    done = requests(point.path).query("status == 'completed'").request_id
    return pd.DataFrame(
        {
            "seed": point.manifest()["seeds"]["seed"],
            "group": config["workload"]["dataset"]["parameters"]["num_models"],
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
