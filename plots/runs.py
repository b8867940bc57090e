"""Finished runs as tables, for figures of any paper: a row per run, its requests, its events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import yaml

from harness.experiments.points import Point
from harness.files import read_json
from harness.schedule import Synthetic

Floats = npt.NDArray[np.float64]
SWITCHING = ("aegaeon", "serverlessllm")  # how systems begin that put models onto GPUs in turn


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row per run: experiment, system, seed, engine, hardware, the summary's main numbers, and
    the sweep's overrides by the last part of their keys (which say `serverlessllm_artifact` where
    the system's name does not). A run that the system refused has no numbers."""
    rows = []
    for point in points:
        row: dict[str, Any] = {"experiment": point.experiment, "seed": point.seed}
        row["refused"] = point.path is None
        if point.path is not None:
            row |= _numbers(point.path)
        rows.append(row | overrides(point))
    # In a figure's table `inputs` says whose numbers a row without a run is made of.
    return pd.DataFrame(rows).rename(columns={"inputs": "trace"})


def overrides(point: Point) -> dict[str, Any]:
    """E.g. num_models: 16 for workload.dataset.parameters.num_models=16."""
    names = {key: re.split(r"[./]", key.partition("@")[0])[-1] for key in point.overrides}
    return {names[key]: number(value) for key, value in point.overrides.items()}


def _numbers(path: Path) -> dict[str, Any]:
    summary, manifest = read_json(path / "summary.json"), read_json(path / "manifest.json")
    kinds = set(manifest["dataset"]["synthetic"])
    system = manifest["choices"]["system"]
    return {
        "system": system,
        "engine": manifest["engine_name"],
        "hardware": manifest["hardware"]["name"],
        "synthetic": bool(kinds - {Synthetic.BY_AUTHORS, Synthetic.MODELS_DRAWN}),  # not theirs
        "num_requests": summary["num_requests"],
        "num_models": len(summary["models"]),
        "token": summary["slo_attainment"]["token"],
        "time": summary["slo_attainment"]["time"],
        "request": summary["slo_attainment"]["request"],
        "ttft_mean_s": summary["ttft_s"]["mean"],
        "mechanism": switches(summary) if system.startswith(SWITCHING) else np.nan,
        "valid": summary["verdict"]["status"] == "VALID",
    }


def switches(summary: Mapping[str, Any]) -> int:
    """How often the run put another model onto a GPU."""
    found: int = summary.get("switches", {"count": 0})["count"]
    return found


def number(text: str) -> Any:
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text


def beside(rows: pd.DataFrame, base: pd.DataFrame, column: str, keys: list[str]) -> pd.Series:
    """`column` of `base` with the same `keys`, for each of `rows`; nan where there is none."""
    found = base.set_index(keys)[column].reindex(pd.MultiIndex.from_frame(rows[keys]))
    return found.set_axis(rows.index)


def events(path: Path, *kinds: str) -> pd.DataFrame:
    """The run's device events of `kinds`, their fields as columns."""
    found = pq.read_table(path / "events.parquet", filters=[("kind", "in", kinds)])
    rows = found.drop_columns(["fields"]).to_pandas()
    fields = pd.DataFrame([json.loads(text) for text in found["fields"].to_pylist()])
    both: pd.DataFrame = pd.concat([rows, fields], axis=1)
    return both


def requests(path: Path) -> pd.DataFrame:
    """A row per request, with when its first and last token came (`first_s`, `last_s`), its TTFT
    and the mean gap between its tokens (`tpot_s`), in s; nan where it has no such tokens."""
    columns = [
        "request_id", "model", "instance", "arrival_s", "status", "prompt_tokens", "output_tokens",
        "num_preemptions", "token_times_s",
    ]  # fmt: skip
    found: pd.DataFrame = pq.read_table(path / "requests.parquet", columns=columns).to_pandas()
    times, count = found.token_times_s.str, found.token_times_s.str.len()
    found["first_s"], found["last_s"] = times[0].astype(float), times[-1].astype(float)
    found["ttft_s"] = found.first_s - found.arrival_s
    found["tpot_s"] = (found.last_s - found.first_s) / (count - 1).where(count > 1)
    return found


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


def config(path: Path) -> dict[str, Any]:
    """What the run was configured to be."""
    found: dict[str, Any] = yaml.safe_load((path / "config.yaml").read_text())
    return found
