"""Step times for the cells of a CSV file, from the calibrations in conf/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.profiles import DECODE_STEPS
from harness.calibrate.tables import read_csv, write_csv
from harness.cost.model import CostModel
from harness.cost.terms import mixed_s
from harness.errors import UsageError
from harness.placement import within_nodes

LARGEST = 1e15  # counts up to here are exact in floating point
COLUMNS = ["model", "device", "tp", "input_len", "batch"]


def predict(cells: Path, out: Path) -> pd.DataFrame:
    """Adds prefill_s, decode_s and source to every row of `cells` and writes `out`.

    prefill_s: `batch` prompts of `input_len` tokens in one iteration. decode_s: the mean of the
    DECODE_STEPS decode steps after it. source: measured, device law or datasheet.
    """
    table = _read(cells)
    parts = [_predicted(key, rows) for key, rows in table.groupby(COLUMNS[:3], sort=False)]
    no_rows = [table.assign(prefill_s=[], decode_s=[], source=[])] if table.empty else []
    result = pd.concat(parts or no_rows).loc[table.index]
    write_csv(result, out, "--out")
    return result


def _read(cells: Path) -> pd.DataFrame:
    """A CSV file with at least COLUMNS and counts that are counts. An empty name stays one."""
    names = dict.fromkeys(COLUMNS[:2], str)
    table = read_csv(cells, "--cells", COLUMNS, keep_default_na=False, dtype=names)
    for column in COLUMNS[2:]:
        counts = pd.to_numeric(table[column], errors="coerce")
        bad = ~((counts >= 1) & (counts % 1 == 0) & (counts <= LARGEST))
        if bad.any():
            row = int(bad.to_numpy().argmax())
            value = table[column].iloc[row]
            raise UsageError(
                f"{cells}, row {row + 1}: {column}={value} is not a whole number from 1 to "
                f"{LARGEST:g}"
            )
    return table


def _predicted(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    name, device, tp = key
    spec = zoo.sharded(zoo.model_name(str(name)), int(tp))
    hardware = zoo.device(zoo.device_name(str(device)))
    within_nodes(spec.tp, hardware)  # refuses what no node holds
    cost = CostModel(spec, hardware)
    prefill, decode = [], []
    for length, batch in zip(rows.input_len, rows.batch, strict=True):
        tokens, prompts = float(length), float(batch)
        pairs = prompts * tokens * (tokens + 1) / 2
        prefill.append(mixed_s(cost.terms, prompts * tokens, pairs, prompts, 0.0, 0.0))
        step_s, growth_s = cost.decode_step(int(batch), int(batch) * (int(length) + 1))
        decode.append(step_s + growth_s * (DECODE_STEPS - 1) / 2)
    return rows.assign(prefill_s=prefill, decode_s=decode, source=cost.source)
