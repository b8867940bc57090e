"""Where requests spend their time (Fig. 14), and how long switches and KV moves take (Fig. 15)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from harness.experiments.points import Point
from plots.figure import Panels, Points, picture
from plots.panels import Look, cdfs, facets, quantiles
from plots.runs import config, events, overrides, requests
from plots.runs import table as of_runs
from plots.style import PALETTE

STAGES = {
    "prefill_wait_s": "prefill waiting",
    "prefill_run_s": "prefill execution",
    "decode_wait_s": "decoding waiting",
    "decode_run_s": "decoding execution",
    "kv_wait_s": "data overhead (waiting for KV)",
}


def stages(points: Points) -> pd.DataFrame:
    served = [point for point in points if point.path is not None]
    found = pd.DataFrame([stage_seconds(point.folder).sum() for point in served])
    return of_runs(served).join(found).assign(setup=[_setup(point) for point in served])


def _setup(point: Point) -> str:
    values = {"num_models": 40, "rate_per_s": 0.1} | overrides(point)
    return f"{values['num_models']} models, {values['rate_per_s']} requests/s each"


def completed(path: Path) -> pd.DataFrame:
    return requests(path).query("status == 'completed'").set_index("request_id")


def stage_seconds(path: Path) -> pd.DataFrame:
    """A row per completed request with the seconds of each stage."""
    done = completed(path)
    runs = events(path, "run").explode("requests")
    runs["seconds"] = runs.end_s - runs.start_s
    spent = runs.pivot_table("seconds", "requests", "phase", "sum").reindex(done.index)
    spent = spent.reindex(columns=["prefill", "decode"]).fillna(0.0)
    swaps = events(path, "swap_in")
    kv_s = (swaps.end_s - swaps.start_s + swaps.waited_s).groupby(swaps.request_id).sum()
    kv_s = kv_s.reindex(done.index).fillna(0.0)
    decoding_s = done.last_s - done.first_s
    kv_s = kv_s.clip(upper=(decoding_s - spent.decode).clip(lower=0.0))  # the last may overlap
    return pd.DataFrame(
        {
            "prefill_wait_s": done.first_s - done.arrival_s - spent.prefill,
            "prefill_run_s": spent.prefill,
            "decode_wait_s": decoding_s - spent.decode - kv_s,
            "decode_run_s": spent.decode,
            "kv_wait_s": kv_s,
        }
    )


@picture(
    "aegaeon_fig14", stages, ("aegaeon_fig14", "aegaeon_fig14_rates"), size=(9, 3.6), quick="rows",
)  # fmt: skip
def fig14(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 14: where requests spend their time, across numbers of models and rates.

    Of each request: waiting for and in its prefill, then waiting for and in its decoding steps.
    What it waits for its KV on the way to a decode instance is the data overhead, taken out of the
    waiting; control overhead (index keeping, CUDA events) is not modelled.
    """
    (panel,) = axes
    means = rows.groupby("setup", sort=False)[list(STAGES)].mean().rename(columns=STAGES)
    shares = 100 * means.div(means.sum(axis=1), axis=0)
    colours = [PALETTE[i] for i in (1, 3, 8, 0, 2)]
    shares.plot.barh(stacked=True, ax=panel, width=0.75, color=colours)
    panel.invert_yaxis()
    panel.set(xlabel="share of the time of all requests (%)", ylabel="", xlim=(0, 100))
    panel.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3)
    return (
        "Mean of the inputs, of 120 s but for 40 models, of 60 s. Control overhead is not modelled."
    )


ENGINES = {"sim": "simulated", "torch": "measured"}
LIMITS_S = (0.1, 1.0)
P95 = 0.95
LINES = ("-", "--", "-.", ":", (0, (6, 2)), (0, (1, 3)))  # curves lie close
KINDS = {"switch": "auto-scaling latency", "kv": "KV transfer overhead of a request"}


def distributions(points: Points) -> pd.DataFrame:
    """CDFs of all runs of an engine (`switch`, `kv`; `share` and `value`, seconds); for each seed
    the 95th percentile of loads (`s`), and the shares that take so long at most (…_within)."""
    rows = []
    for engine in ENGINES:
        runs = [p for p in points if p.path is not None and p.manifest()["engine_name"] == engine]
        switches, kv = pd.concat(map(_switches, runs)), pd.concat(map(_kv, runs))
        # Loads from the model cache through the stage buffer, with nothing prefetched.
        loads = pd.concat([_by_model(point, "load") for point in runs])
        # Prefill batches, which §4.2 compares with loading a model; not drawn.
        prefills = pd.concat([_events(p, "run").query("phase == 'prefill'") for p in runs])
        p95_s = loads.groupby(["group", "seed"]).seconds.quantile(P95)
        within = _within(switches)
        found = [
            _cdfs(switches).assign(kind="switch"),
            _cdfs(kv).assign(kind="kv"),
            p95_s.rename("s").reset_index().assign(kind="load", quantile=P95),
            within.assign(
                kind="switch_within", mechanism=within.seed.map(switches.groupby("seed").size())
            ),
            _within(kv).assign(kind="kv_within"),
            _within(prefills).assign(kind="prefill_within"),
        ]
        rows.append(pd.concat(found).assign(engine=engine))
    return pd.concat(rows)


def _cdfs(found: pd.DataFrame) -> pd.DataFrame:
    return found.groupby("group", sort=False).seconds.apply(quantiles).reset_index("group")


def _within(found: pd.DataFrame) -> pd.DataFrame:
    """For each limit in LIMITS_S and each seed, the share of `seconds` that is at most the
    limit."""
    shares = {
        f"{limit_s:g} s": found.seconds.le(limit_s).groupby(found.seed).mean()
        for limit_s in LIMITS_S
    }
    made: pd.DataFrame = pd.concat(shares, names=["group"]).rename("share").reset_index()
    return made


def _switches(point: Point) -> pd.DataFrame:
    found = _by_model(point, "switch")
    return found[found.before.notna()]


def _by_model(point: Point, kind: str) -> pd.DataFrame:
    found = _events(point, kind)
    return found.assign(group=found.model.map(_names(point)))


def _kv(point: Point) -> pd.DataFrame:
    swaps = _events(point, "swap_in")
    waited_s = (swaps.seconds + swaps.waited_s).groupby(swaps.request_id).sum()
    waited_s = waited_s.reindex(completed(point.folder).index).fillna(0.0)
    models = config(point.folder)["workload"]["dataset"]["parameters"]["num_models"]
    about = {"seed": point.seed, "group": f"{models} models"}
    return pd.DataFrame(about | {"seconds": waited_s.to_numpy()})


def _events(point: Point, kind: str) -> pd.DataFrame:
    found = events(point.folder, kind)
    return found.assign(seconds=found.end_s - found.start_s, seed=point.seed)


def _names(point: Point) -> dict[str, str]:
    """The architecture behind each name in the run's schedule, e.g. llama2-13b."""
    schedule = pq.read_table(point.folder / "schedule.parquet")
    names = dict.fromkeys(schedule["model"].to_pylist())
    models = config(point.folder)["model_set"]
    cycle = models["cycle"]
    specs = [models["specs"][cycle[i % len(cycle)]]["name"] for i in range(len(names))]
    return dict(zip(names, specs, strict=True))


@picture(
    "aegaeon_fig15", distributions, ("aegaeon_fig14", "aegaeon_fig15_live"), shape=(2, 2),
    size=(9, 6.4),
)  # fmt: skip
def fig15(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 15: how long switches take, by model, and what KV transfers cost each request. Above
    simulated, of 16 H800; below measured, on real workers of the machine that the footer names."""
    found = facets(axes, rows, engine=ENGINES, kind=KINDS)
    for letter, (panel, shown, engine, kind) in zip("abcd", found, strict=True):
        groups = shown.group.unique()
        looks = {name: Look(name, PALETTE[i], "", LINES[i]) for i, name in enumerate(groups)}
        cdfs(panel, shown, looks, by="group")
        panel.set(title=f"({letter}) {KINDS[kind]}, {ENGINES[engine]}", xlabel="seconds")
        panel.legend(loc="lower right")
    for panel in axes[:2]:
        panel.set(xscale="linear", xlim=(-0.02, 1.5))
    return (
        "Switches: from the decision to the first batch of the next model, the first one of an "
        "instance left out. KV: what a request waits for its swap-ins, in all. Measured: eight "
        "models with random weights, on one prefill and one decode instance."
    )
