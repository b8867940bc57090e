"""Fig. 15: how long switches take, by model, and what KV transfers cost each request.

Above simulated, of 16 H800; below measured, on real workers of the machine that the footer names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import yaml
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.panels import Look, cdfs, quantiles
from plots.runs import events, requests
from plots.style import PALETTE, figure

EXPERIMENTS = ("aegaeon_fig14", "aegaeon_fig15_live")
ENGINES = {"sim": "simulated", "torch": "measured"}
LIMITS_S = (0.1, 1.0)
P95 = 0.95
LINES = ("-", "--", "-.", ":", (0, (6, 2)), (0, (1, 3)))  # curves lie close


def table(points: Sequence[Point]) -> pd.DataFrame:
    """CDFs of all runs of an engine (`switch`, `kv`; `share` and `value`, seconds); of each seed
    the 95th percentile of loads (`s`), and the shares that take so long at most (…_within)."""
    rows = []
    for engine in ENGINES:
        runs = [p for p in points if p.path is not None and p.manifest()["engine_name"] == engine]
        switches, kv = pd.concat(map(_switches, runs)), pd.concat(map(_kv, runs))
        loads = pd.concat(map(_loads, runs)).groupby(["group", "seed"]).seconds.quantile(P95)
        counts = switches.groupby("seed").size()
        within = _within(switches).assign(kind="switch_within")
        found = [
            _cdfs(switches).assign(kind="switch"),
            _cdfs(kv).assign(kind="kv"),
            loads.rename("s").reset_index().assign(kind="load", quantile=P95),
            within.assign(mechanism=within.seed.map(counts)),
            _within(kv).assign(kind="kv_within"),
            _within(pd.concat(map(_prefills, runs))).assign(kind="prefill_within"),
        ]
        rows.append(pd.concat(found).assign(engine=engine))
    return pd.concat(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9, height=6.4)
    titles = {"switch": "auto-scaling latency", "kv": "KV transfer overhead of a request"}
    cells = [(engine, kind) for engine in ENGINES for kind in titles]
    for panel, letter, (engine, kind) in zip(axes, "abcd", cells, strict=True):
        shown = rows[(rows.engine == engine) & (rows.kind == kind)]
        groups = shown.group.unique()
        looks = {name: Look(name, PALETTE[i], "", LINES[i]) for i, name in enumerate(groups)}
        cdfs(panel, shown, looks, by="group")
        panel.set(title=f"({letter}) {titles[kind]}, {ENGINES[engine]}", xlabel="seconds")
        panel.legend(loc="lower right")
    for panel in axes[:2]:
        panel.set(xscale="linear", xlim=(-0.02, 1.5))
    return made, (
        "Switches: from the decision to the first batch of the next model, the first one of an "
        "instance left out. KV: what a request waits for its swap-ins, in all. Measured: eight "
        "models with random weights, on one prefill and one decode instance."
    )


def _cdfs(found: pd.DataFrame) -> pd.DataFrame:
    made = found.groupby("group", sort=False).seconds.apply(quantiles)
    return made.reset_index("group")


def _within(found: pd.DataFrame) -> pd.DataFrame:
    """Of each seed, the share that takes so long at most."""
    shares = {
        f"{limit_s:g} s": found.seconds.le(limit_s).groupby(found.seed).mean()
        for limit_s in LIMITS_S
    }
    made: pd.DataFrame = pd.concat(shares, names=["group"]).rename("share").reset_index()
    return made


def _switches(point: Point) -> pd.DataFrame:
    found = _events(point, "switch")
    return found[found.before.notna()].assign(group=lambda rows: rows.model.map(_names(point)))


def _loads(point: Point) -> pd.DataFrame:
    """Loads from the model cache through the stage buffer, with nothing prefetched."""
    found = _events(point, "load")
    return found.assign(group=found.model.map(_names(point)))


def _prefills(point: Point) -> pd.DataFrame:
    """Prefill batches, which §4.2 compares with loading a model; not drawn."""
    return _events(point, "run").query("phase == 'prefill'")


def _kv(point: Point) -> pd.DataFrame:
    swaps = _events(point, "swap_in")
    waited_s = (swaps.seconds + swaps.waited_s).groupby(swaps.request_id).sum()
    assert point.path is not None
    done = requests(point.path).query("status == 'completed'").request_id
    models = _config(point)["workload"]["dataset"]["parameters"]["num_models"]
    return pd.DataFrame(
        {
            "seed": point.seed, "group": f"{models} models",
            "seconds": waited_s.reindex(done).fillna(0.0).to_numpy(),
        }
    )  # fmt: skip


def _events(point: Point, kind: str) -> pd.DataFrame:
    assert point.path is not None
    found = events(point.path, kind)
    return found.assign(seconds=found.end_s - found.start_s, seed=point.seed)


def _names(point: Point) -> dict[str, str]:
    """The architecture behind each name in the run's schedule, e.g. llama2-13b."""
    assert point.path is not None
    names = dict.fromkeys(pq.read_table(point.path / "schedule.parquet")["model"].to_pylist())
    models = _config(point)["model_set"]
    cycle = models["cycle"]
    specs = [models["specs"][cycle[i % len(cycle)]]["name"] for i in range(len(names))]
    return dict(zip(names, specs, strict=True))


def _config(point: Point) -> dict[str, Any]:
    assert point.path is not None
    found: dict[str, Any] = yaml.safe_load((point.path / "config.yaml").read_text())
    return found
