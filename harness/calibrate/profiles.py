"""Measured latencies as cells: one (model, device, tp) pair's prefill and decode times.

Reads the public profiles of Aegaeon's artifact, clean cells only: others span two prefill steps.
The same measurement published twice counts once. Times are medians of 12 runs: the means hold
stragglers of an eager-mode engine, up to twice the median.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.tables import read_csv
from harness.errors import UsageError

Floats = npt.NDArray[np.float64]
KEY = ["model", "device", "tp"]
NAMES = ["model", "device"]  # columns of the public profiles that are read: words, and numbers
NUMBERS = ["tp", "input_len", "batch", "p50_prefill_s", "p50_decode_s"]
DATA_DIR = Path(os.environ.get("HARNESS_DATA_DIR") or zoo.CONF.parents[1] / "shared" / "data")
MIXTURES = ("qwen1_5_moe_a2_7b_chat",)  # the zoo's models are dense
DECODE_STEPS = 9  # of 10 output tokens; their context grows from input_len + 1 to input_len + 9


@dataclass(frozen=True)
class Cells:
    """The measurements of one pair: equal-length prompts of `input_len`, `batch` at once."""

    model: str  # names of the zoo
    device: str
    tp: int
    input_len: Floats
    batch: Floats
    prefill_s: Floats
    decode_s: Floats  # per step

    def without(self, turnaround_s: float) -> Cells:
        """These cells as if an `execute` took only its iterations; cells are two executes each."""
        return replace(
            self,
            prefill_s=self.prefill_s - turnaround_s,
            decode_s=self.decode_s - turnaround_s / DECODE_STEPS,
        )

    @property
    def pair(self) -> str:
        return f"{self.model} {self.device} tp{self.tp}"

    @property
    def tokens(self) -> Floats:
        return self.input_len * self.batch

    @property
    def query_key_pairs(self) -> Floats:
        return self.batch * self.input_len * (self.input_len + 1) / 2

    @property
    def context_tokens(self) -> Floats:
        """The tokens of context that the mean decode step reads."""
        return self.batch * (self.input_len + (DECODE_STEPS + 1) / 2)


def read_profiles(directory: Path | None = None) -> list[Cells]:
    """Every pair of engine_latency.csv whose model the zoo has."""
    path = (directory or DATA_DIR / "profiles") / "engine_latency.csv"
    table = read_table(path, NAMES, NUMBERS)
    if table.get("clean") is None or table.clean.dtype != bool:
        raise UsageError(f"{path} has no column clean of True and False")
    table = table[table.clean & ~table.model.isin(MIXTURES)]
    if table.empty:
        raise UsageError(f"{path} has no clean rows of dense models: nothing can be fitted")
    if not (table[NUMBERS] > 0).all(axis=None):
        raise UsageError(f"{path}: a clean row holds a number that is not above 0")
    table = table.drop_duplicates(["device", "tp", "input_len", "batch", "p50_decode_s"])
    table = table.assign(
        model=table.model.map(zoo.model_name), device=table.device.map(zoo.device_name)
    )
    return [_cells(key, rows) for key, rows in table.groupby(KEY)]


def read_table(path: Path, names: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    """The CSV file, whose columns `names` must be there, and `numbers` and be numbers."""
    if not path.is_file():
        raise UsageError(f"the measured profiles are missing: {path} (set HARNESS_DATA_DIR)")
    table = read_csv(path, needed=(*names, *numbers))
    for name in numbers:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise UsageError(f"{path}: the column {name} holds what is no number")
    return table


def _cells(key: tuple[Any, ...], rows: pd.DataFrame) -> Cells:
    model, device, tp = key
    return Cells(model, device, int(tp), *rows[NUMBERS[1:]].to_numpy(np.float64).T.copy())
