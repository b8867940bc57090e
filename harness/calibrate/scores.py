"""How well predictions meet cells: mean absolute percentage error and R², pair by pair.

Also of pairs that the law has not seen. A model is left out with its twins, which have the same
layers, and a device with all others of its chip: Llama-2-7B would tell the law of Qwen-7B too much,
and an H800 of an H100.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from harness.calibrate import zoo
from harness.calibrate.fit import errors, fit_law
from harness.calibrate.profiles import Cells, Floats
from harness.cost.hardware import StepCoefficients

PREFILL_BAR_PCT, DECODE_BAR_PCT, R2_BAR = 7.0, 5.0, 0.9  # of a fitted pair
LEFT_OUT_PREFILL_BAR_PCT, LEFT_OUT_DECODE_BAR_PCT = 20.0, 15.0  # median over left-out pairs


def mape_pct(error: Floats) -> float:
    return float(100 * np.abs(error).mean())


def r2(measured: Floats, error: Floats) -> float:
    """1 − residual over total variance; `error` is relative."""
    return float(1 - ((error * measured) ** 2).sum() / ((measured - measured.mean()) ** 2).sum())


def scores(cells: Cells, terms: StepCoefficients) -> dict[str, Any]:
    prefill, decode = errors(terms, cells)
    return {
        "model": cells.model,
        "device": cells.device,
        "tp": cells.tp,
        "cells": len(cells.batch),
        "prefill_mape_pct": mape_pct(prefill),
        "prefill_bias_pct": float(100 * prefill.mean()),
        "prefill_r2": r2(cells.prefill_s, prefill),
        "decode_mape_pct": mape_pct(decode),
        "decode_bias_pct": float(100 * decode.mean()),
        "decode_r2": r2(cells.decode_s, decode),
    }


def table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(list(rows)).sort_values(["device", "tp", "model"], ignore_index=True)


def batch_alone_pct(cells: Cells) -> float:
    """The decode error of the median at each batch size: what no smooth law can be blamed for.

    It has a free value per batch size, so only measurement noise and the context are left in it.
    """
    frame = pd.DataFrame({"batch": cells.batch, "decode_s": cells.decode_s})
    median_s = frame.groupby("batch").decode_s.transform("median").to_numpy(np.float64)
    return mape_pct(median_s / cells.decode_s - 1)


def missed(row: Any) -> list[str]:
    """The bars that a fitted pair misses, in words."""
    bars = {
        f"prefill {row.prefill_mape_pct:.1f} %": row.prefill_mape_pct > PREFILL_BAR_PCT,
        f"decode {row.decode_mape_pct:.1f} %": row.decode_mape_pct > DECODE_BAR_PCT,
        f"prefill R² {row.prefill_r2:.2f}": row.prefill_r2 <= R2_BAR,
        f"decode R² {row.decode_r2:.2f}": row.decode_r2 <= R2_BAR,
    }
    return [words for words, over in bars.items() if over]


def leave_one_out(cells: Sequence[Cells], what: Literal["model", "device"]) -> pd.DataFrame:
    """Scores of every pair, predicted by a law fitted without its model and that one's twins, or
    without its chip."""
    group = [layers(c.model) if what == "model" else chip(c.device) for c in cells]
    rows = []
    for name in sorted(set(group)):
        law = fit_law([c for c, own in zip(cells, group, strict=True) if own != name])
        left_out = [c for c, own in zip(cells, group, strict=True) if own == name]
        rows += [scores(c, law.terms(c)) for c in left_out]
    return table(rows)


def layers(model: str) -> str:
    """The same for models with as many layers of equal size and KV: their names differ, and little
    else that iteration times could show."""
    spec = zoo.model(model)
    return f"{spec.num_layers} layers of {spec.hidden_size}, {spec.num_kv_heads} KV heads"


def chip(device: str) -> str:
    """The same for devices with the same FLOP/s: their memories and links may differ."""
    return f"{zoo.device(device).dense_flop_per_s:g} FLOP/s"
