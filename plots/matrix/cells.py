"""The cells of the matrix: what each run says, and what the runs of a system on a workload come to.

The table of a figure has a row for each run. Everything else is computed from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.claims.expressions import Beyond, crossing
from harness.experiments.points import Point
from harness.files import read_json
from harness.records.device_events import covered_s
from harness.records.interval import Interval, interval
from plots.conf import read
from plots.figure import Points
from plots.runs import events, requests

PART = "experiment/matrix/"
HARDWARE = {"h100": "H100", "a100": "A100"}
WORKLOADS = {
    "burstgpt": "BurstGPT",
    "azure_code": "Azure code",
    "azure_conv": "Azure conv.",
    "sharegpt": "ShareGPT",
}
COMMON = {  # the load of TTFT and GPU seconds by half and hardware: factors on the arrivals
    ("burst", "h100"): 2.0, ("burst", "a100"): 0.5, ("many", "h100"): 1.0, ("many", "a100"): 0.5,
}  # fmt: skip
COUNTED = {"drops": "exchange", "switches": "switch", "moves": "kv_move"}  # counters by event
HALF = {"mlperf_server": "burst", "aegaeon": "many"}  # by its SLO
CELL = ["hardware", "workload", "system"]
SLOW = "_slow"  # ends the workloads of many models


class Cell(NamedTuple):
    """A system on a workload and GPUs. `goodput`: requests/s by seed; `bound`: "<" or "≥" where an
    end was not found, "" otherwise. `gpu_s`: GPU seconds held."""

    goodput: Mapping[int, float]
    bound: str
    ttft_p99_s: Interval
    gpu_s: Interval

    @property
    def over_seeds(self) -> Interval:
        return interval(list(self.goodput.values()))

    @property
    def mean(self) -> float:
        return self.over_seeds.mean


def of_runs(points: Points) -> pd.DataFrame:
    """A row for each run that was not refused."""
    return pd.DataFrame([_row(point) for point in points if point.path is not None])


def _row(point: Point) -> dict[str, Any]:
    chosen = {key: point.overrides[f"{PART}{key}@_global_"] for key in ("hardware", "workload")}
    setting = point.overrides[f"{PART}system@_global_"]
    found, manifest = requests(point.folder), point.manifest()
    summary = read_json(point.folder / "summary.json")
    gpus = manifest["hardware"]["num_devices"]
    held = ("load", "run") if setting.startswith("serverlessllm") else ("slot",)
    seen = events(point.folder, *COUNTED.values(), *held)
    ttft_s = found.ttft_s.dropna()
    return {
        "config_hash": manifest["config_hash"],
        "experiment": point.experiment, "half": HALF[summary["slo"]["name"]],
        **chosen, "system": setting.partition("_")[0], "setting": setting,
        "seed": point.seed, "gpus": gpus, "rate": float(point.overrides["workload.scale.rate"]),
        "num_requests": len(found), "per_s": len(found) / float(found.arrival_s.max()),
        "request": summary["slo_attainment"]["request"],
        "token": summary["slo_attainment"]["token"],
        "ttft_p99_s": float(np.percentile(ttft_s, 99)), "tpot_mean_s": summary["tpot_s"]["mean"],
        "gpu_s": gpu_seconds(found, seen, gpus), **counters(found, seen),
    }  # fmt: skip


def gpu_seconds(found: pd.DataFrame, seen: pd.DataFrame, gpus: int) -> float:
    """GPU seconds held until the last token. ServerlessLLM holds a GPU while it loads or runs a
    model, for an idle instance gives it back at once; a system without slots holds all."""
    end_s = float(found.last_s.max())
    slots, loads = (seen[seen.kind.isin(kinds)] for kinds in (["slot"], ["load", "run"]))
    if len(slots):
        held = slots.end_s.clip(upper=end_s) - slots.start_s
        return float((held * slots.num_devices).sum())
    if len(loads):
        of_instances: Iterable[Any] = loads.groupby("instance")
        return sum(covered_s(each.to_dict("records")) for _, each in of_instances)
    return gpus * end_s


def counters(found: pd.DataFrame, seen: pd.DataFrame) -> dict[str, int]:
    """How often a run's mechanism ran. preemptions: of requests, whose KV was lost or paged out;
    drops: of layers for KV; scale_ups: of instances; switches: of a GPU to another model; moves:
    copies of KV between instances or memories."""
    count = seen.kind.value_counts()
    scaled = int((seen.role == "loading").sum()) if "role" in seen else 0
    return {
        "preemptions": int(found.num_preemptions.sum()), "scale_ups": scaled,
        **{name: int(count.get(kind, 0)) for name, kind in COUNTED.items()},
    }  # fmt: skip


def cells(rows: pd.DataFrame, metric: str = "request") -> dict[tuple[str, str, str], Cell]:
    """By hardware, workload and system."""
    return {
        (str(hardware), str(workload), str(system)): _cell(of_cell, metric)
        for (hardware, workload, system), of_cell in rows.groupby(CELL, sort=False)
    }


def _cell(rows: pd.DataFrame, metric: str) -> Cell:
    curves = {seed: rows[rows.seed == seed] for seed in sorted(map(int, rows.seed.unique()))}
    ends = {seed: crossing(curve, "per_s", metric) for seed, curve in curves.items()}
    below = [seed for seed, end in ends.items() if np.isnan(end)]
    above = any(isinstance(end, Beyond) for end in ends.values())
    goodput = ends | {seed: float(curves[seed].per_s.min()) for seed in below}
    at = rows[rows.rate == COMMON[rows.half.iloc[0], rows.hardware.iloc[0]]]
    bound = "<" if below else "≥" if above else ""
    ttft_s, gpu_s = (interval(at[name].tolist()) for name in ("ttft_p99_s", "gpu_s"))
    return Cell(goodput, bound, ttft_s, gpu_s)


def tied(first: Cell, second: Cell, band: float) -> bool:
    """Whether no order of the goodputs of two cells can be told: they are within the simulator's
    band of each other, or the 95 % interval of their paired differences holds 0."""
    low, high = sorted((first.mean, second.mean))
    if high <= (1 + band) * low:
        return True
    apart = interval([first.goodput[seed] - second.goodput[seed] for seed in first.goodput])
    return apart.half is not None and abs(apart.mean) <= apart.half


def leader(of_workload: Mapping[str, Cell]) -> str:
    """The system with the highest mean goodput, or bound of it."""
    return max(of_workload, key=lambda system: of_workload[system].mean)


def leaders(of_workload: Mapping[str, Cell], band: float | None = None) -> list[str]:
    """The systems that tie with the one of the highest goodput, and it."""
    found = read("matrix")["goodput"] if band is None else band
    best = of_workload[leader(of_workload)]
    return [name for name, cell in of_workload.items() if tied(cell, best, found)]
