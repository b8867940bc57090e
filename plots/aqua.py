"""What AQUA's figures share: runs as tables, how each system looks, and what is published."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import yaml
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.style import PALETTE

# (label, colour, marker) by the option of experiment/aqua/system.
SYSTEMS: dict[str, tuple[str, Any, str]] = {
    "fcfs": ("vLLM (FCFS)", PALETTE[3], "s"),
    "cfs_dram": ("vLLM + CFS, DRAM, block by block", PALETTE[1], "^"),
    "cfs_dram_gathered": ("vLLM + CFS, DRAM, gathered", PALETTE[8], "v"),
    "aqua": ("AQUA", PALETTE[2], "o"),
}
WINDOW_S = 60.0  # of a burst (section 9.1)


def overrides(point: Point) -> dict[str, str]:
    """E.g. system: fcfs for experiment/aqua/system@_global_=fcfs."""
    return {
        re.split(r"[./]", key.partition("@")[0])[-1]: text for key, text in point.overrides.items()
    }


def config(point: Point) -> dict[str, Any]:
    assert point.path is not None
    found: dict[str, Any] = yaml.safe_load((point.path / "config.yaml").read_text())
    return found


def requests(point: Point, model: str | None = None) -> pd.DataFrame:
    """A row per request in order of arrival: TTFT, TPOT and RCT (request completion time) in s; nan
    where it did not complete. `model`: of one name alone."""
    assert point.path is not None
    columns = [
        "request_id", "model", "arrival_s", "status", "prompt_tokens", "output_tokens",
        "token_times_s",
    ]  # fmt: skip
    rows: pd.DataFrame = pq.read_table(point.path / "requests.parquet", columns=columns).to_pandas()
    if model is not None:
        rows = rows[rows.model == model]
    rows = rows.sort_values("arrival_s", kind="stable").reset_index(drop=True)
    rows["order"] = np.arange(1, len(rows) + 1)
    first = np.array([t[0] if len(t) else np.nan for t in rows.token_times_s])
    last = np.array([t[-1] if len(t) else np.nan for t in rows.token_times_s])
    steps = np.array([max(len(t) - 1, 0) for t in rows.token_times_s], float)
    done = (rows.status == "completed").to_numpy()
    rows["ttft_s"] = first - rows.arrival_s
    rows["tpot_s"] = np.where(done & (steps > 0), (last - first) / np.maximum(steps, 1), np.nan)
    rows["rct_s"] = np.where(done, last - rows.arrival_s, np.nan)
    return rows


def by_order(points: Sequence[Point], group: str = "system") -> pd.DataFrame:
    """The requests of every run, with its experiment, system and seed, without token times.
    `group`: of experiment/aqua, whose options are the systems."""
    tables = []
    for point in points:
        if point.path is None:
            continue
        rows = requests(point).drop(columns=["token_times_s", "model"])
        burst = config(point)["workload"]["arrivals"]["burst"]
        start_s, end_s = burst["start_s"], burst["start_s"] + burst["duration_s"]
        inside = (rows.arrival_s >= start_s) & (rows.arrival_s < end_s)
        before = rows.arrival_s < start_s
        rows["phase"] = np.where(before, "before", np.where(inside, "burst", "after"))
        rows.insert(0, "seed", point.seed)
        rows.insert(0, "system", overrides(point)[group])
        rows.insert(0, "experiment", point.experiment)
        tables.append(rows)
    return pd.concat(tables, ignore_index=True)


def summed_up(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each run the numbers that are claimed: peaks, means and medians by phase."""
    found = []
    for (system, seed), run in rows.groupby(["system", "seed"], sort=False):
        row: dict[str, Any] = {"system": system, "seed": seed, "row": "run"}
        burst = run[run.phase == "burst"]
        before = run[run.phase == "before"]
        row |= {
            "num_burst": len(burst), "num_failed": int((run.status != "completed").sum()),
            "peak_ttft_s": run.ttft_s.max(), "burst_ttft_s": burst.ttft_s.mean(),
            "before_ttft_s": before.ttft_s.median(), "mean_rct_s": run.rct_s.mean(),
            "burst_rct_s": burst.rct_s.mean(), "burst_tpot_s": burst.tpot_s.mean(),
            "peak_tpot_s": run.tpot_s.max(), "mean_ttft_s": run.ttft_s.mean(),
            "before_mean_ttft_s": before.ttft_s.mean(),
            "after_ttft_s": run[run.phase == "after"].ttft_s.mean(),
            "high_from": high(run).min(), "high_until": high(run).max(),
        }  # fmt: skip
        found.append(row)
    return pd.DataFrame(found)


def high(run: pd.DataFrame) -> pd.Series:
    """Orders of requests whose TPOT is high, by our reading: above 1.25 times the median of those
    before the burst."""
    usual = run[run.phase == "before"].tpot_s.median()
    return run[run.tpot_s > 1.25 * usual].order


def lines(axes: Axes, rows: pd.DataFrame, column: str, seed: int) -> None:
    """`column` over the order of arrival, of one seed: a line per system; the burst shaded."""
    one = rows[rows.seed == seed]
    for system, (label, colour, marker) in SYSTEMS.items():
        run = one[one.system == system]
        if len(run):
            axes.plot(
                run.order, run[column], color=colour, marker=marker, ms=2.5, lw=1, label=label
            )
    burst = one[(one.phase == "burst") & (one.system == one.system.iloc[0])]
    if len(burst):
        axes.axvspan(burst.order.min() - 0.5, burst.order.max() + 0.5, color="0.9", zorder=0, lw=0)
    axes.set(xlabel="request, in order of arrival")


def events(point: Point, *kinds: str) -> pd.DataFrame:
    """The run's device events of `kinds`, their fields as columns."""
    assert point.path is not None
    found = pq.read_table(point.path / "events.parquet", filters=[("kind", "in", kinds)])
    rows = found.drop_columns(["fields"]).to_pandas()
    fields = pd.DataFrame([json.loads(text) for text in found["fields"].to_pylist()])
    both: pd.DataFrame = pd.concat([rows, fields], axis=1)
    return both


def summary(point: Point) -> dict[str, Any]:
    assert point.path is not None
    found: dict[str, Any] = json.loads((Path(point.path) / "summary.json").read_text())
    return found
