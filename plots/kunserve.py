"""What KunServe's figures share: requests and KV of a run, SLOs, ratios between systems, captions.

TBT is the paper's: a request's mean, our tpot. Every figure leaves a PNG, a PDF and the CSV that
both were drawn from, which is what the claims (`results/claims/kunserve.yaml`) are computed from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aegaeon import overrides
from plots.caption import stamp
from plots.style import PALETTE

Floats = npt.NDArray[np.float64]

# (label, colour, marker, line)
SYSTEMS: dict[str, tuple[str, Any, str, str]] = {
    "kunserve": ("KunServe", PALETTE[0], "o", "-"),
    "llumnix_replication": ("Llumnix (replication)", PALETTE[1], "s", "-"),
    "llumnix_migration": ("Llumnix (migration)", PALETTE[2], "^", "-"),
    "llumnix_pipeline": ("Llumnix (pipeline)", PALETTE[3], "D", "-"),
    "vllm": ("vLLM, recompute", PALETTE[7], "v", "-"),
    "vllm_kv_swap": ("vLLM, KV swap", PALETTE[4], "v", "-"),
    "vllm_parameter_swap": ("vLLM, parameter swap", PALETTE[5], "v", "-"),
}
DATASETS = {
    "burstgpt": "BurstGPT",
    "azureconv": "AzureConv",
    "agieval_cot": "AGIEval-CoT (SYNTHETIC)",
}
FACTOR = 5.0  # SLO: 5x the P50 under a modest load (§5.1)
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
SUPPORT = {"p50": 1, "p90": 65, "p99": 662, "p999": 6636}  # requests that a percentile needs
STEP_S = 0.5  # of timelines
FULL = 0.95  # of the blocks in use: nothing of size fits
MAX_SEQS = 256  # conf/system/llumnix.yaml, of an instance


def requests(path: Path) -> pd.DataFrame:
    """A row per request that was answered: arrival, prompt, instance, times of its tokens, TTFT,
    TBT (nan for one token)."""
    columns = ["instance", "arrival_s", "prompt_tokens", "num_preemptions", "token_times_s"]
    found = pq.read_table(path / "requests.parquet", columns=columns).to_pandas()
    found = found[found.token_times_s.map(len) > 0].reset_index(drop=True)
    first = found.token_times_s.map(lambda times: times[0]).to_numpy(float)
    last = found.token_times_s.map(lambda times: times[-1]).to_numpy(float)
    count = found.token_times_s.map(len).to_numpy(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        tbt_s = np.where(count > 1, (last - first) / (count - 1), np.nan)
    made: pd.DataFrame = found.assign(
        first_s=first, last_s=last, output_tokens=count, ttft_s=first - found.arrival_s, tbt_s=tbt_s
    )
    return made


def steps(end_s: float) -> Floats:
    """Each STEP_S from 0 up to `end_s`."""
    return np.arange(0.0, end_s, STEP_S).astype(np.float64)


def held(found: pd.DataFrame, times_s: Floats) -> tuple[Floats, Floats]:
    """Tokens whose KV is held, and tokens that queued prompts need, at each of `times_s`.
    Preempted requests count as if they held theirs."""
    running, queued = np.zeros(len(times_s)), np.zeros(len(times_s))
    columns = [found[c].to_numpy(float) for c in ("arrival_s", "first_s", "last_s")]
    places = np.searchsorted(times_s, np.column_stack(columns))
    prompts = found.prompt_tokens.to_numpy(int)
    for (start, first, end), prompt, stamps in zip(
        places, prompts, found.token_times_s, strict=True
    ):
        queued[start:first] += prompt
        generated = np.searchsorted(np.asarray(stamps), times_s[first:end], side="right")
        running[first:end] += prompt + generated
    return running, queued


def capacity_tokens(point: Point) -> int:
    """Of one instance with all parameters."""
    engine = point.manifest()["engine"]
    (blocks,) = engine["num_kv_blocks"].values()
    return int(blocks * engine["block_tokens"])


def num_instances(point: Point) -> int:
    engine = point.manifest()["engine"]
    found: int = engine["num_instances"] if "num_instances" in engine else len(engine["devices"])
    return found


def numbers(point: Point) -> dict[str, Any]:
    """One row: percentiles, KV demand over capacity, throughput."""
    assert point.path is not None
    manifest, found = point.manifest(), requests(point.path)
    end_s = float(found.arrival_s.max())
    row: dict[str, Any] = {
        "experiment": point.experiment, "model": manifest["choices"]["model"],
        "seed": point.seed, "requests": len(found), "requests_per_s": len(found) / end_s,
        "preemptions": int(found.num_preemptions.sum()),
        "tokens_per_s": found.output_tokens.sum() / found.last_s.max(),
    }  # fmt: skip
    for metric in ("ttft", "tbt"):
        values = found[f"{metric}_s"].dropna()
        for name, q in PERCENTILES.items():
            enough = len(values) >= SUPPORT[name]
            row[f"{metric}_{name}_s"] = np.percentile(values, q) if enough else np.nan
    running, queued = held(found, steps(end_s))
    total = capacity_tokens(point) * manifest["engine"]["num_instances"]
    row |= {"load": (running + queued).mean() / total, "peak": (running + queued).max() / total}
    return row | {key: value for key, value in overrides(point).items() if key != "seed"}


def limits(point: Point) -> dict[str, float]:
    """Why requests wait for their first token, as shares of that time: the instance's KV memory is
    full, it runs as many sequences as it may, or it computes. Of a run whose instances hold all
    parameters; memory first, where both are full."""
    assert point.path is not None
    found, capacity = requests(point.path), capacity_tokens(point)
    times_s = steps(float(found.last_s.max()))
    waited = dict.fromkeys(("memory", "sequences", "compute"), 0.0)
    for _, mine in found.groupby("instance"):
        running, _ = held(mine, times_s)
        count = _between(mine.first_s, mine.last_s, times_s)
        waiting = _between(mine.arrival_s, mine.first_s, times_s)
        full = running >= FULL * capacity
        seats = ~full & (count >= FULL * MAX_SEQS)
        waited["memory"] += waiting[full].sum()
        waited["sequences"] += waiting[seats].sum()
        waited["compute"] += waiting[~full & ~seats].sum()
    total = sum(waited.values())
    return {f"wait_{name}": value / total if total else np.nan for name, value in waited.items()}


def _between(start: pd.Series, end: pd.Series, times_s: Floats) -> Floats:
    begun = np.searchsorted(np.sort(start.to_numpy()), times_s, side="right")
    ended = np.searchsorted(np.sort(end.to_numpy()), times_s, side="right")
    return (begun - ended).astype(float)


def slos(rows: pd.DataFrame, points: Sequence[Point], by: Sequence[str]) -> dict[Any, Any]:
    """(TTFT, TBT) in seconds for each value of `by`: FACTOR x the P50 of replication's runs at the
    lowest rate, all seeds together."""
    found = {}
    for key, of_key in rows[rows.system == "llumnix_replication"].groupby(list(by)):
        modest = of_key[of_key.rate == of_key.rate.min()].index
        pooled = pd.concat([requests(points[i].path) for i in modest])
        found[key] = FACTOR * pooled.ttft_s.median(), FACTOR * pooled.tbt_s.median()
    return found


def judged(rows: pd.DataFrame, points: Sequence[Point], by: Sequence[str]) -> pd.DataFrame:
    """`rows` with the SLO of each and the shares of requests that violate it."""
    limits_s, made = slos(rows, points, by), []
    for i, row in rows.iterrows():
        path = points[int(str(i))].path
        assert path is not None
        found = requests(path)
        ttft_s, tbt_s = limits_s[tuple(row[key] for key in by)]
        late, slow = found.ttft_s > ttft_s, found.tbt_s > tbt_s
        made.append(
            dict(row) | {"slo_ttft_s": ttft_s, "slo_tbt_s": tbt_s, "late": late.mean(),
                         "slow": slow.mean(), "violating": (late | slow).mean()}
        )  # fmt: skip
    return pd.DataFrame(made)


def compared(rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """`rows` with each run's numbers over KunServe's and replication's at the same rate and seed,
    and over its own system's at the lowest rate. `modest`, `top`: the lowest and the highest rate;
    `best`: the rate at which KunServe removes most violations of replication."""
    keys = [*by, "rate", "seed"]
    found = rows.set_index(keys)
    mine = found[found.system == "kunserve"]
    theirs = found[found.system == "llumnix_replication"]
    for number in ("ttft_p50", "ttft_p99", "tbt_p50", "tbt_p99"):
        value = found[f"{number}_s"]
        found[f"{number}_over_kunserve"] = value / mine[f"{number}_s"].reindex(found.index)
        found[f"{number}_over_replication"] = value / theirs[f"{number}_s"].reindex(found.index)
    found["tbt_p50_added"] = found.tbt_p50_over_replication - 1
    found["tbt_p99_added"] = found.tbt_p99_over_replication - 1
    found["throughput_lost"] = 1 - found.tokens_per_s / theirs.tokens_per_s.reindex(found.index)
    removed = (theirs.violating - mine.violating).reindex(found.index)
    found["removed"] = removed
    found["removed_share"] = removed / theirs.violating.reindex(found.index)
    found = found.reset_index()
    of_setup = found.groupby([*by, "seed"])
    found["modest"] = found.rate == of_setup.rate.transform("min")
    found["top"] = found.rate == of_setup.rate.transform("max")
    found["best"] = found.removed == of_setup.removed.transform("max")
    own = found[found.modest].set_index([*by, "system", "seed"]).ttft_p99_s
    index = pd.MultiIndex.from_frame(found[[*by, "system", "seed"]])
    found["ttft_p99_over_modest"] = found.ttft_p99_s / own.reindex(index).to_numpy()
    others = found[found.system != "llumnix_migration"].groupby(keys).ttft_p99_s.max()
    worst = others.reindex(pd.MultiIndex.from_frame(found[keys])).to_numpy()
    found["ttft_p99_over_worst"] = found.ttft_p99_s / worst
    return found


def lines(axes: Axes, rows: pd.DataFrame, y: str, factor: float = 1.0, x: str = "rate_x") -> None:
    """Mean over seeds of each system, its range shaded."""
    for system, (label, colour, marker, style) in SYSTEMS.items():
        shown = rows[rows.system == system].groupby(x)[y].agg(["mean", "min", "max"]) * factor
        if shown.empty:
            continue
        axes.plot(shown.index, shown["mean"], color=colour, marker=marker, ls=style, ms=4,
                  label=label)  # fmt: skip
        axes.fill_between(shown.index, shown["min"], shown["max"], color=colour, alpha=0.15)


def caption(made: Figure, points: Sequence[Point], note: str) -> None:
    """`note`, and that arrivals are Azure code's (§5.1), where anything was run."""
    stamp(made, points, f"Azure code arrivals. {note}" if points else note)
