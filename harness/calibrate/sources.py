"""Independent measurements of A100s, and what the model says of the same quantities.

Aegaeon's profiles calibrate the model; DistServe's coefficients (OPT-13B and 66B, two engines of
one artifact), MuxServe's profiles (LLaMA-7B and 13B) and Splitwise's (Llama-2-70B) are never
fitted, so that they test it. Each has its own engine: where they differ from each other, the model
cannot agree with all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.profiles import DATA_DIR, read_table
from harness.cost.hardware import Calibration
from harness.cost.model import CostModel

DEVICE = "a100_sxm"
# Quantities: prefill microseconds per token between 512 and 2048; a decode step of 1 and of 32
# requests at 128 tokens of context, ms; Splitwise's is the mean of 128 steps after a prompt of 512.
SHORT, LONG, CONTEXT, BATCH = 512, 2048, 128, 32
SPLITWISE, SPLITWISE_CONTEXT = "llama2-70b", SHORT + 64
QUANTITIES = ("prefill_us_per_token", "decode_1_ms", "decode_32_ms")
Row = tuple[float | None, ...]  # the quantities, None where the source has none
# MuxServe's profiles of vLLM on A100, as its public repository fits them.
MUXSERVE: dict[str, Row] = {"llama2-7b": (70.0, 11.5, None), "llama2-13b": (125.6, 20.2, 24.1)}


def modelled(model: str, tp: int, calibration: Calibration) -> tuple[float, float, float]:
    hardware = replace(zoo.device(DEVICE), calibration=calibration)
    context = SPLITWISE_CONTEXT if model == SPLITWISE else CONTEXT
    cost = CostModel(zoo.sharded(model, tp), hardware)
    long_s, short_s = (cost.mixed_step([(0, n)], 0, 0) for n in (LONG, SHORT))
    decodes = [cost.decode_step(n, n * context)[0] * 1e3 for n in (1, BATCH)]
    return (long_s - short_s) / (LONG - SHORT) * 1e6, decodes[0], decodes[1]


def distserve(directory: Path | None = None) -> dict[tuple[str, str, int], Row]:
    """The quantities by (engine, model, tp), from DistServe's fitted coefficients."""
    path = (directory or DATA_DIR / "profiles") / "distserve_coefficients.csv"
    key = ["engine", "model", "tp", "phase"]
    table = read_table(path, key, ["a_ms", "b_ms", "c_ms"]).set_index(key)
    found: dict[tuple[str, str, int], Row] = {}
    terms = {key: tuple(row) for key, row in zip(table.index, table.to_numpy(), strict=True)}
    for engine, name, tp, phase in terms:
        if phase == "prefill":
            _, per_token, per_square = terms[engine, name, tp, "prefill"]
            fixed, per_context, per_request = terms[engine, name, tp, "decoding_smallbs"]
            slope = 1e3 * (per_token + per_square * (LONG + SHORT))
            steps = [fixed + n * (per_context * CONTEXT + per_request) for n in (1, BATCH)]
            found[engine, name.removeprefix("facebook/"), tp] = (slope, *steps)
    return found


def splitwise(directory: Path | None = None) -> dict[int, Row]:
    """The quantities of SPLITWISE by TP: medians of Splitwise's repeated measurements."""
    path = (directory or DATA_DIR / "profiles") / "splitwise_perf_model.csv"
    numbers = ["prompt_size", "batch_size", "prompt_time", "token_time", "tensor_parallel"]
    table = read_table(path, ["model", "hardware"], numbers)
    table = table[(table.model == SPLITWISE) & (table.hardware == "a100-80gb")]
    found: dict[int, Row] = {}
    for tp in sorted(set(table.tensor_parallel)):
        rows = table[table.tensor_parallel == tp]
        prompt_ms = rows[rows.batch_size == 1].groupby("prompt_size").prompt_time.median()
        step_ms = rows[rows.prompt_size == SHORT].groupby("batch_size").token_time.median()
        slope = 1e3 * (prompt_ms[LONG] - prompt_ms[SHORT]) / (LONG - SHORT)
        found[int(tp)] = (slope, step_ms[1], step_ms[BATCH])
    return found


def compare(calibration: Calibration, directory: Path | None = None) -> pd.DataFrame:
    """One row per model, TP and quantity: each source, the model with `calibration` of DEVICE,
    and the error to their range.

    outside_pct: how far the model lies outside the range that the sources span, in percent of the
    source that is nearest; 0 inside.
    """
    published: dict[tuple[str, int], dict[str, Row]] = {}
    for (engine, model, tp), values in distserve(directory).items():
        if zoo.model(model).num_heads % tp == 0:
            published.setdefault((model, tp), {})[f"DistServe's {engine}"] = values
    for tp, row in splitwise(directory).items():
        published[SPLITWISE, tp] = {"Splitwise": row}
    for model, row in MUXSERVE.items():
        published[model, 1] = {"MuxServe": row}
    # Llama-2-13B and OPT-13B have nearly the same size: their sources are compared together.
    published.setdefault(("opt-13b", 1), {})["MuxServe"] = MUXSERVE["llama2-13b"]
    rows = []
    for (model, tp), sources in published.items():
        for i, (quantity, value) in enumerate(
            zip(QUANTITIES, modelled(model, tp, calibration), strict=True)
        ):
            by_source = {name: row[i] for name, row in sources.items()}
            seen = [v for v in by_source.values() if v is not None]
            if seen:
                head = {"model": model, "tp": tp, "quantity": quantity, "model_says": value}
                rows.append({**head, **by_source, "outside_pct": outside_pct(value, seen)})
    found = pd.DataFrame(rows)
    return found[[*found.columns.drop("outside_pct"), "outside_pct"]]


def outside_pct(value: float, seen: Sequence[float]) -> float:
    nearest = min(max(value, min(seen)), max(seen))
    return 100 * abs(value - nearest) / nearest
