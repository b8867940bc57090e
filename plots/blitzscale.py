"""What BlitzScale's figures share: runs by workload and system, latencies over time, GPUs held.

A figure's CSV has a row per number: `quantity`, of which `workload`, `system` and `seed`, the
`value`, and where it is a curve's its `x`. Shares saved and ratios that the paper states are among
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import yaml

from harness.experiments.points import Point
from plots.aegaeon import events
from plots.style import PALETTE

Floats = npt.NDArray[np.float64]
SYSTEM = "experiment/blitzscale/system@_global_"
WORKLOAD = "experiment/blitzscale/workload@_global_"
WORKLOADS = {
    "burstgpt": "BurstGPT, 72B, cluster A",
    "azure_code": "AzureCode, 8B, cluster B",
    "azure_conv": "AzureConv, 24B, cluster A",
}
SYSTEMS: dict[str, tuple[str, Any, str]] = {  # label, colour, line
    "blitzscale": ("BlitzScale", PALETTE[0], "-"),
    "serverlessllm": ("S-LLM, TTL 5 min", PALETTE[3], "-"),
    "serverlessllm_30s": ("S-LLM, TTL 30 s", PALETTE[3], ":"),
    "allcache": ("AllCache", PALETTE[2], "--"),
    "network": ("+Network", PALETTE[1], "-"),
    "multicast": ("+Multicast", PALETTE[4], "-"),
    "distserve_full": ("DistServe (full)", PALETTE[7], "-"),
    "distserve_half": ("DistServe (half)", PALETTE[5], "--"),
    "colocated": ("BlitzScale, colocated", PALETTE[0], "-"),
    "vllm_full": ("vLLM (full)", PALETTE[7], "-"),
    "vllm_half": ("vLLM (half)", PALETTE[5], "--"),
}
PERCENT = np.linspace(0, 1, 101)


@dataclass(slots=True)
class Latencies:
    """Of one run's requests, in seconds; of those that failed nothing."""

    arrival: Floats
    ttft: Floats
    at: Floats  # when each token after the first came
    tbt: Floats  # its gap to the one before
    tpot: Floats  # of each request, nan with one token


@dataclass(slots=True)
class Run:
    workload: str
    system: str
    seed: int
    path: Path
    valid: bool
    latencies: Latencies = field(repr=False)


def runs(points: Sequence[Point]) -> list[Run]:
    return [
        Run(
            point.overrides.get(WORKLOAD, ""), point.overrides.get(SYSTEM, ""), point.seed,
            point.path, point.verdict()["status"] == "VALID", latencies(point.path),
        )
        for point in points
        if point.path is not None
    ]  # fmt: skip


def latencies(path: Path) -> Latencies:
    rows = pq.read_table(path / "requests.parquet", columns=["arrival_s", "token_times_s"])
    times = rows["token_times_s"].to_pylist()
    arrival = np.array(
        [at for at, of in zip(rows["arrival_s"].to_pylist(), times, strict=True) if of]
    )
    tokens = [np.asarray(of, float) for of in times if of]
    gaps = [np.diff(of) for of in tokens]
    return Latencies(
        arrival=arrival,
        ttft=np.array([of[0] for of in tokens]) - arrival,
        at=np.concatenate([of[1:] for of in tokens]),
        tbt=np.concatenate(gaps),
        tpot=np.array([of.mean() if len(of) else np.nan for of in gaps]),
    )


def each_second(at: Floats, values: Floats | None = None) -> tuple[Floats, Floats]:
    """The mean of `values` in each second that has any; without `values`, how many there are in
    each second."""
    seconds = np.floor(at).astype(int)
    count = np.bincount(seconds)
    if values is None:
        return np.arange(len(count), dtype=float), count.astype(float)
    total = np.bincount(seconds, values)
    there = np.flatnonzero(count)
    return there.astype(float), total[there] / count[there]


def held(path: Path) -> pd.DataFrame:
    """GPUs held (slot events): instance, start_s, end_s, role, num_devices."""
    return events(path, "slot")


def held_each_second(found: pd.DataFrame, roles: Iterable[str]) -> tuple[Floats, Floats]:
    """Mean GPUs held by `roles` in each second."""
    rows = found[found.role.isin(list(roles))]
    seconds = np.arange(np.ceil(found.end_s.max()))
    start, end = rows.start_s.to_numpy(), rows.end_s.to_numpy()
    overlap = np.minimum(end, seconds[:, None] + 1) - np.maximum(start, seconds[:, None])
    return seconds, (np.clip(overlap, 0, None) * rows.num_devices.to_numpy()).sum(axis=1)


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "summary.json").read_text())
    return found


def gpu_seconds(path: Path) -> float:
    """Of a system without slots all GPUs, until the last token."""
    slots = summary(path).get("slot_gpu_seconds")
    if slots:
        return float(sum(slots.values()))
    config = yaml.safe_load((path / "config.yaml").read_text())
    found = latencies(path)
    end_s = max(float(found.at.max()), float((found.arrival + found.ttft).max()))
    return float(config["hardware"]["num_devices"]) * end_s


def row(run: Run, quantity: str, value: float, **more: Any) -> dict[str, Any]:
    about = {"workload": run.workload, "system": run.system, "seed": run.seed, "valid": run.valid}
    return {"quantity": quantity, **about, "value": value, **more}


def saved(
    found: Sequence[Run], quantity: str, against: str, measure: Callable[[Run], float],
    system: str = "blitzscale",
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Of each workload and seed with both: 1 − `measure` of `system` over that of `against`, and
    their ratio (`… over`)."""
    theirs = {(run.workload, run.seed): run for run in found if run.system == against}
    for run in found:
        other = theirs.get((run.workload, run.seed))
        if run.system == system and other is not None:
            ratio = measure(run) / measure(other)
            about = {"against": against, "valid": run.valid and other.valid}
            yield row(run, f"share of {quantity} saved", 1 - ratio) | about
            yield row(run, f"{quantity} over", ratio) | about


MEASURES: dict[str, Callable[[Run], float]] = {
    "mean TTFT": lambda run: float(run.latencies.ttft.mean()),
    "mean TBT": lambda run: float(run.latencies.tbt.mean()),
    "P95 TTFT": lambda run: float(np.percentile(run.latencies.ttft, 95)),
    "P95 TBT": lambda run: float(np.percentile(run.latencies.tbt, 95)),
    "P99 TTFT": lambda run: float(np.percentile(run.latencies.ttft, 99)),
    "P99 TBT": lambda run: float(np.percentile(run.latencies.tbt, 99)),
    "GPU time": lambda run: gpu_seconds(run.path),
}


def measured(found: Sequence[Run]) -> list[dict[str, Any]]:
    return [row(run, name, measure(run)) for run in found for name, measure in MEASURES.items()]
