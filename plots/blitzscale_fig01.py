"""Fig. 1: BurstGPT's requests, the prefills that they need, and the KV of those that decode.

(a) and (b) by arrival; (b) prompt tokens of a second over what one prefill makes, as profiled. (c)
on Fig. 24's runs of vLLM on all GPUs: KV of what has its first token and not its last. Window and
rate are ours and time is compressed: neither sizes nor growth within 2 s are the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from matplotlib.figure import Figure

from harness.cost.profile import HardwareProfile
from harness.experiments.points import Point
from plots.blitzscale import Floats, curve, over_time, row, runs
from plots.conf import hardware, spec
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig24",)
MODEL, HARDWARE = "llama2-7b", "a100pcie_x16"
BATCH_TOKENS = 2000  # of the profiled prefill
SHOWN_SEED = 0
STEADY = 0.05  # of a run's beginning and end, which have few requests: left out of (c)'s ends


CURVES = {"requests/s": "requests/s", "prefills needed": "instances", "KV (GB)": "GB"}  # and units


def table(points: Sequence[Point]) -> pd.DataFrame:
    model = spec(MODEL)
    prefill_s = HardwareProfile(hardware(HARDWARE)).prefill_s(model, BATCH_TOKENS)
    rows: list[dict[str, Any]] = []
    for run in runs([point for point in points if "vllm_full" in point.overrides.values()]):
        rate = over_time(run.latencies.arrival)[1]
        demand = prompts_each_second(run.path) * prefill_s / BATCH_TOKENS
        kv = kv_tokens(run.path) * model.kv_bytes_per_token / 1e9
        inner = kv[int(len(rate) * STEADY) : int(len(rate) * (1 - STEADY))]
        room = kv_room_bytes(run.path, model.weight_bytes) / 1e9
        for end, value in (("lowest", inner.min()), ("highest", inner.max())):
            rows.append(row(run, f"KV (GB), the {end}", float(value)))
            over = float(value) / room
            rows.append(row(run, f"KV over an instance's room for it, the {end}", over))
        if run.seed == SHOWN_SEED:
            for name, level in zip(CURVES, (rate, demand, kv), strict=True):
                rows += curve(run, name, np.arange(len(level), dtype=float), level)
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 3, width=11, height=3)
    for panel, letter, (name, unit) in zip(axes, "abc", CURVES.items(), strict=True):
        shown = rows[rows.quantity == name]
        panel.plot(shown.x, shown.value, color=PALETTE[0])
        title = f"({letter}) {name.removesuffix(' (GB)')}"
        panel.set(title=title, xlabel="seconds", ylabel=unit, ylim=(0, None))
    return made, "BurstGPT 40 times as fast and upscaled, Llama2-7B, cluster B; seed 0."


def prompts_each_second(path: Path) -> Floats:
    """Prompt tokens that arrive."""
    found = pq.read_table(path / "requests.parquet", columns=["arrival_s", "prompt_tokens"])
    seconds = np.floor(found["arrival_s"].to_numpy()).astype(int)
    return np.bincount(seconds, found["prompt_tokens"].to_numpy()).astype(float)


def kv_tokens(path: Path) -> Floats:
    """In memory at the beginning of each second, of requests that decode."""
    columns = ["prompt_tokens", "token_times_s"]
    found = pq.read_table(path / "requests.parquet", columns=columns).to_pylist()
    every = [of["token_times_s"] for of in found if of["token_times_s"]]
    at = np.arange(int(np.ceil(max(times[-1] for times in every))) + 1, dtype=float)
    total = np.zeros(len(at))
    for of in found:
        times = np.asarray(of["token_times_s"] or [], float)
        if len(times):
            begun = np.searchsorted(times, at, side="right")
            alive = (begun > 0) & (at < times[-1])
            total += np.where(alive, of["prompt_tokens"] + begun, 0)
    return total


def kv_room_bytes(path: Path, weight_bytes: float) -> float:
    """Of a GPU, beside the parameters."""
    config = yaml.safe_load((path / "config.yaml").read_text())
    share = config["engine"]["memory_utilization"] * config["hardware"]["memory_bytes"]
    return float(share - config["engine"]["activation_reserve_bytes"] - weight_bytes)
