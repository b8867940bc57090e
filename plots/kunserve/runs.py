"""What KunServe's figures share: requests and KV of a run, SLOs, ratios between systems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.figure import Points
from plots.panels import Look
from plots.runs import Floats, config, events, held, overrides
from plots.runs import requests as of_run
from plots.style import PALETTE

SYSTEMS = {
    "kunserve": Look("KunServe", PALETTE[0], "o"),
    "kunserve_artifact": Look("KunServe, public code", PALETTE[6], "P"),
    "kunserve_control": Look("control: nothing dropped", "0.5", "x", size=8),
    "llumnix_replication": Look("Llumnix (replication)", PALETTE[1], "s", size=6),
    "llumnix_migration": Look("Llumnix (migration)", PALETTE[2], "^", line="--"),
    "llumnix_pipeline": Look("Llumnix (pipeline)", PALETTE[3], "D"),
    "vllm": Look("vLLM, recompute", PALETTE[7], "v"),
    "vllm_kv_swap": Look("vLLM, KV swap", PALETTE[4], "<"),
    "vllm_parameter_swap": Look("vLLM, parameter swap", PALETTE[5], ">"),
}
SYSTEM = "experiment/kunserve/system@_global_"  # keys of sweeps
POINT = "experiment/kunserve/point@_global_"
OTHERS = ("kunserve_control", "llumnix_replication", "llumnix_migration", "llumnix_pipeline")
WHOLE = (  # whose instances hold all parameters
    "kunserve_control", "kunserve_artifact_control", "llumnix_replication", "llumnix_prompts_first",
)  # fmt: skip
OVER_TIME = {name: look._replace(marker="") for name, look in SYSTEMS.items()}
MOVES = {"vllm_kv_swap": "swap out", "llumnix_migration": "migration"}  # purposes of copies of KV
DATASETS = {
    "burstgpt": "BurstGPT",
    "azureconv": "AzureConv",
    "agieval_cot": "AGIEval-CoT (SYNTHETIC)",
}
LATENCIES = {  # (title, factor), in the order of the paper's panels
    "ttft_p50": ("P50 TTFT (s)", 1.0), "ttft_p99": ("P99 TTFT (s)", 1.0),
    "tbt_p50": ("P50 TBT (ms)", 1e3), "tbt_p99": ("P99 TBT (ms)", 1e3),
}  # fmt: skip
FACTOR = 5.0  # SLO: 5x the P50 under a modest load (§5.1)
PROVISIONED = 1 / 2.1  # mean KV demand over the memory (§2.2)
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
SUPPORT = {"p50": 1, "p90": 65, "p99": 662, "p999": 6636}  # requests that a percentile needs
STEP_S = 0.5  # step of timelines
FULL = 0.95  # share of blocks in use from which nothing of size fits
THROTTLED = 0.5  # share of waiting that is for memory, above which memory throttles
UNDER_THROTTLING = (  # columns that the table has again for throttled rates alone, as throttled_…
    *(f"ttft_p99_of_{other}" for other in OTHERS), "tbt_p50_of_llumnix_pipeline",
    "tbt_p99_of_llumnix_pipeline", "ttft_p50_over_replication", "tbt_p50_added", "tbt_p99_added",
    "ttft_p99_over_modest", "throughput_lost", "violating", "slow", "removed_share",
)  # fmt: skip


def system(point: Point) -> str:
    """The run's system, by its key in SYSTEMS."""
    choices = point.manifest()["choices"]
    return str(choices.get(SYSTEM, choices["system"]))


def point_of(point: Point) -> str:
    """The option of conf/experiment/kunserve/point that the run has; empty: none."""
    return str(point.manifest()["choices"].get(POINT, ""))


def rate_of(point: Point) -> float:
    """How many times the arrivals of its trace the run has."""
    return float(config(point.folder)["workload"]["scale"]["rate"])


def requests(point: Point) -> pd.DataFrame:
    """The requests that were answered; TBT is the mean of a request's gaps, nan for one token."""
    found = of_run(point.folder).dropna(subset=["first_s"]).reset_index(drop=True)
    answered = found.token_times_s.map(len)  # less than output_tokens where it broke off
    return found.assign(output_tokens=answered).rename(columns={"tpot_s": "tbt_s"})


def steps(end_s: float) -> Floats:
    """Times from 0 up to `end_s`, each STEP_S."""
    return np.arange(0.0, end_s, STEP_S).astype(np.float64)


def capacity_tokens(point: Point) -> int:
    """Tokens of KV that one instance with all parameters holds."""
    engine = point.manifest()["engine"]
    (blocks,) = engine["num_kv_blocks"].values()
    return int(blocks * engine["block_tokens"])


def num_instances(point: Point) -> int:
    engine = point.manifest()["engine"]
    return int(engine["num_instances"] if "num_instances" in engine else len(engine["devices"]))


def numbers(point: Point) -> dict[str, Any]:
    """One row of a run's numbers: percentiles, KV demand over capacity, throughput."""
    manifest, found = point.manifest(), requests(point)
    row: dict[str, Any] = {
        "experiment": point.experiment, "system": system(point), "rate": rate_of(point),
        "model": manifest["choices"]["model"], "seed": point.seed,
        "config_hash": point.config_hash(), "mechanism": mechanism(point), "requests": len(found),
        "requests_per_s": len(found) / found.arrival_s.max(),
        "preemptions": int(found.num_preemptions.sum()),
        "tokens_per_s": found.output_tokens.sum() / found.last_s.max(),
    }  # fmt: skip
    for metric in ("ttft", "tbt"):
        values = found[f"{metric}_s"].dropna()
        for name, q in PERCENTILES.items():
            enough = len(values) >= SUPPORT[name]
            row[f"{metric}_{name}_s"] = np.percentile(values, q) if enough else np.nan
    running, queued = held(found, steps(float(found.arrival_s.max())))
    total = capacity_tokens(point) * manifest["engine"]["num_instances"]
    row |= {"load": (running + queued).mean() / total, "peak": (running + queued).max() / total}
    row["largest_group"] = largest_group(point)
    return row | {key: value for key, value in overrides(point).items() if key not in row}


def mechanism(point: Point) -> float:
    """How often the run did what its system is about: an instance dropped layers, a request's KV
    was swapped out or migrated, an iteration fetched layers (each that gave tokens did). nan for
    systems of which this cannot be said."""
    name = system(point)
    if name.startswith("kunserve") and name not in WHOLE:
        return float(len(events(point.folder, "drop")))
    if name == "vllm_parameter_swap":
        tokens = requests(point)[["instance", "token_times_s"]].explode("token_times_s")
        return float(tokens.groupby("instance").token_times_s.nunique().sum())
    if name in MOVES:
        moves = events(point.folder, "kv_move")
        return float((moves.purpose == MOVES[name]).sum()) if len(moves) else 0.0
    return np.nan


def largest_group(point: Point) -> float:
    """Instances of the largest group that a drop made; nan: none was made."""
    made = events(point.folder, "plan")
    return float(made.instance.str.count(r"\+").max() + 1) if len(made) else np.nan


def exchange_s(point: Point) -> float:
    """Mean seconds of the run's exchanges; nan: none."""
    found = events(point.folder, "exchange")
    return float((found.end_s - found.start_s).mean()) if len(found) else np.nan


def waits(point: Point) -> dict[str, float]:
    """The reasons why requests wait for their first token, where instances hold all parameters, as
    shares of that time: the instance's KV memory is full, it runs as many sequences as it may, or
    it computes. Memory first, where both are full."""
    if system(point) not in WHOLE:
        return {}
    found, capacity = requests(point), capacity_tokens(point)
    most = config(point.folder)["system"]["limits"]["max_num_seqs"]
    times_s = steps(float(found.last_s.max()))
    waited = dict.fromkeys(("memory", "sequences", "compute"), 0.0)
    for _, mine in found.groupby("instance"):
        running, _ = held(mine, times_s)
        count = _between(mine.first_s, mine.last_s, times_s)
        waiting = _between(mine.arrival_s, mine.first_s, times_s)
        full = running >= FULL * capacity
        seats = ~full & (count >= FULL * most)
        waited["memory"] += waiting[full].sum()
        waited["sequences"] += waiting[seats].sum()
        waited["compute"] += waiting[~full & ~seats].sum()
    total = sum(waited.values())
    return {f"wait_{name}": value / total if total else np.nan for name, value in waited.items()}


def count_until(times: pd.Series, at_s: Floats) -> Floats:
    return np.searchsorted(np.sort(times.to_numpy()), at_s, side="right").astype(float)


def _between(start: pd.Series, end: pd.Series, times_s: Floats) -> Floats:
    return count_until(start, times_s) - count_until(end, times_s)


def end_to_end(points: Points, group: str = "experiment", **more: list[str]) -> pd.DataFrame:
    """A row per run: `numbers`, why requests wait, violations of the group's SLO, `compared`.
    `more`: further columns; `group`: the one whose values are compared apart."""
    rows = pd.DataFrame([numbers(point) | waits(point) for point in points]).assign(**more)
    slos = {}
    for name, mine in rows[rows.system == "llumnix_replication"].groupby(group):
        slos[name] = slo_s([points[i] for i in mine.index[mine.rate == mine.rate.min()]])
    found = [
        violations(requests(point), *slos[name])
        for point, name in zip(points, rows[group], strict=True)
    ]
    means = rows.groupby([group, "rate"]).requests_per_s.transform("mean")
    rows["per_instance"] = means / [num_instances(point) for point in points]
    return compared(rows.join(pd.DataFrame(found)), group)


def slo_s(modest: Points) -> tuple[float, float]:
    """The SLOs of TTFT and TBT: FACTOR x the P50 of these runs, taken together."""
    found = pd.concat([requests(point) for point in modest])
    return FACTOR * float(found.ttft_s.median()), FACTOR * float(found.tbt_s.median())


def violations(found: pd.DataFrame, ttft_s: float, tbt_s: float) -> dict[str, float]:
    """Shares of requests that take longer than the SLO."""
    late, slow = found.ttft_s > ttft_s, found.tbt_s > tbt_s
    return {
        "slo_ttft_s": ttft_s, "slo_tbt_s": tbt_s, "late": late.mean(), "slow": slow.mean(),
        "violating": (late | slow).mean(),
    }  # fmt: skip


def over(rows: pd.DataFrame, base: pd.Series, name: str) -> pd.DataFrame:
    """`rows` with each of LATENCIES over that of the `base` at the same rate and seed."""
    found = rows.set_index(["rate", "seed"])
    whole = found[base.to_numpy()]
    for number in LATENCIES:
        ratio = found[f"{number}_s"] / whole[f"{number}_s"].reindex(found.index)
        found[f"{number}_over_{name}"] = ratio
    return found.reset_index()


def compared(rows: pd.DataFrame, group: str = "experiment") -> pd.DataFrame:
    """`rows` with each run's numbers over KunServe's and replication's at the same rate and seed,
    and over its own system's at the lowest rate. KunServe's rows have the others' over its own
    (`…_of_SYSTEM`). `mean_rate`: requests/s, the mean of the seeds. `modest`: the lowest rate;
    `pressed`: that at which replication's mean KV demand is nearest to the paper's; `throttled`:
    those at which its requests wait for memory most of their waiting."""
    setup = [group, "rate"]
    keys = [*setup, "seed"]
    found = rows.set_index(keys)
    mine = found[found.system == "kunserve"]
    theirs = found[found.system == "llumnix_replication"]
    for number in LATENCIES:
        value = found[f"{number}_s"]
        found[f"{number}_over_kunserve"] = value / mine[f"{number}_s"].reindex(found.index)
        found[f"{number}_over_replication"] = value / theirs[f"{number}_s"].reindex(found.index)
        for other in OTHERS:
            ratio = value[found.system == other].reindex(found.index) / value
            found[f"{number}_of_{other}"] = ratio.where(found.system == "kunserve")
    found["tbt_p50_added"] = found.tbt_p50_over_replication - 1
    found["tbt_p99_added"] = found.tbt_p99_over_replication - 1
    found["throughput_lost"] = 1 - found.tokens_per_s / theirs.tokens_per_s.reindex(found.index)
    before = theirs.violating.reindex(found.index)
    found["removed"] = before - mine.violating.reindex(found.index)
    found["removed_share"] = found.removed / before
    aside = ("llumnix_migration", "kunserve_control", "kunserve_artifact")
    others = found[~found.system.isin(aside)].groupby(keys).ttft_p99_s.max()
    found["ttft_p99_over_worst"] = found.ttft_p99_s / others.reindex(found.index)
    found = found.reset_index()
    found["mean_rate"] = found.groupby(setup).requests_per_s.transform("mean")
    found["modest"] = found.rate == found.groupby(group).rate.transform("min")
    loads = found[found.system == "llumnix_replication"].groupby(setup).load.mean()
    nearest = (loads - PROVISIONED).abs().groupby(group).idxmin().tolist()
    found["pressed"] = pd.MultiIndex.from_frame(found[setup]).isin(nearest)
    own = found[found.modest].set_index([group, "system", "seed"]).ttft_p99_s
    index = pd.MultiIndex.from_frame(found[[group, "system", "seed"]])
    found["ttft_p99_over_modest"] = found.ttft_p99_s / own.reindex(index).to_numpy()
    replication = found[found.system == "llumnix_replication"]
    short = replication.groupby(setup).wait_memory.mean() > THROTTLED
    found["throttled"] = pd.MultiIndex.from_frame(found[setup]).isin(short.index[short])
    under = found[list(UNDER_THROTTLING)].where(found.throttled).add_prefix("throttled_")
    return pd.concat([found, under], axis=1)
