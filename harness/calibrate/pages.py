"""The pages of calibration: what each of `templates/` is filled with.

fit.md and crossval.md are of the eager engine's law, silicon.md and silicon_crossval.md of what
published measurements taught of devices and engines.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from harness.calibrate import scores
from harness.calibrate.conf_files import TEMPLATES
from harness.calibrate.published_fit import FITTED_SETS, Measurements
from harness.calibrate.silicon import Fitted
from harness.calibrate.tables import page
from harness.cost.hardware import Silicon

FIT_COLUMNS = [
    "model", "device", "tp", "cells", "prefill_mape_pct", "prefill_r2", "decode_mape_pct",
    "decode_r2", "batch_alone_pct", "misses",
]  # fmt: skip
LEFT_OUT_COLUMNS = [
    "model", "device", "tp", "prefill_mape_pct", "prefill_bias_pct", "decode_mape_pct",
    "decode_bias_pct",
]  # fmt: skip
DATA = (
    "Medians of 12 runs per cell, clean cells of the public profiles of Aegaeon's artifact "
    "(Zenodo 10.5281/zenodo.16673199; vLLM, eager mode, fp16)."
)
OFFLINE_BAR_PCT = 8.0  # median over the offline cells
SHOWN_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048)


def fit_page(
    fitted: pd.DataFrame, law: pd.DataFrame, sources: pd.DataFrame, limited: Mapping[str, list[str]]
) -> str:
    """`limited`: the constants on a limit, by device."""
    parts = {
        "prefill MAPE": fitted.prefill_mape_pct <= scores.PREFILL_BAR_PCT,
        "decode MAPE": fitted.decode_mape_pct <= scores.DECODE_BAR_PCT,
        "prefill R²": fitted.prefill_r2 > scores.R2_BAR,
        "decode R²": fitted.decode_r2 > scores.R2_BAR,
    }
    misses = [", ".join(scores.missed(row)) for row in fitted.itertuples()]
    late = fitted[~parts["decode MAPE"]]
    tighter = late[late.batch_alone_pct <= scores.DECODE_BAR_PCT]
    return page(
        TEMPLATES / "fit.md",
        data=DATA,
        bars=scores,
        met="; ".join(f"{name}: {met.sum()} of {len(fitted)}" for name, met in parts.items()),
        num_late=len(late),
        num_scattered=len(late) - len(tighter),
        tighter=" and ".join(tighter.model + " on " + tighter.device + " tp" + tighter.tp.map(str)),
        fitted=fitted.assign(misses=misses)[FIT_COLUMNS],
        law=law[LEFT_OUT_COLUMNS],
        limits=limits(limited),
        sources=sources,
    )


def limits(limited: Mapping[str, list[str]]) -> str:
    """The constants of `limited` and whose they are."""
    told = [f"{', '.join(names)} of {device}" for device, names in limited.items() if names]
    return "; ".join(told) or "none"


def crossval_page(left_out: Mapping[str, pd.DataFrame]) -> str:
    device = left_out["device"]
    return page(
        TEMPLATES / "crossval.md",
        data=DATA,
        bars=scores,
        wide=", ".join(sorted(device[device.tp > 1].device.unique())),
        summary=medians(left_out),
        left_out={what: frame[LEFT_OUT_COLUMNS] for what, frame in left_out.items()},
    )


def medians(left_out: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    rows = []
    for what, frame in left_out.items():
        for pairs, part in {"all": frame, "single GPU": frame[frame.tp == 1]}.items():
            errors = part[["prefill_mape_pct", "decode_mape_pct"]]
            worst = errors.max().set_axis(["worst_prefill_pct", "worst_decode_pct"])
            rows.append({"left out": what, "pairs": pairs, **errors.median(), **worst})
    return pd.DataFrame(rows)


def silicon_page(
    seen: Measurements, fitted: Fitted, scored: pd.DataFrame, found: Mapping[str, Silicon]
) -> str:
    median = over_cells(scored[scored.measured == "offline"])
    used = int(seen.fitted.sum())
    return page(
        TEMPLATES / "silicon.md",
        num_offline=len(seen.offline),
        num_prefills=len(seen.prefill),
        num_fitted=used,
        num_held_out=len(seen.served) - used,
        sets=", ".join(FITTED_SETS),
        median=median,
        bar=OFFLINE_BAR_PCT,
        summed=summed(scored),
        efficiency=efficiency(found),
        constants=constants(found),
        engines=engines(fitted),
    )


def over_cells(scored: pd.DataFrame, column: str = "median_error_pct") -> float:
    """The mean of `column` over the cells of all rows."""
    return float((scored[column] * scored.cells).sum() / scored.cells.sum())


def summed(scored: pd.DataFrame) -> pd.DataFrame:
    rows = []
    keys = ["measured", "chip", "engine"]
    for key, part in scored.groupby(keys):
        worst = part.iloc[int(part.median_error_pct.to_numpy().argmax())]
        found = {
            "models": len(part),
            "cells": part.cells.sum(),
            "median error %": round(over_cells(part), 1),
            "signed mean %": round(over_cells(part, "bias_pct"), 1),
            "worst model": worst.model,
            "its median %": round(worst.median_error_pct, 1),
        }
        rows.append(dict(zip(keys, key, strict=True)) | found)
    return pd.DataFrame(rows)


def efficiency(found: Mapping[str, Silicon]) -> pd.DataFrame:
    rows = []
    for name, one in found.items():
        known = np.log(one.products_tokens), np.log(one.products_efficiency)
        shares = np.exp(np.interp(np.log(SHOWN_TOKENS), *known)).round(2)
        shown = dict(zip(map(str, SHOWN_TOKENS), shares, strict=True))
        rows.append({"silicon": name, "basis": one.basis, **shown})
    return pd.DataFrame(rows)


def constants(found: Mapping[str, Silicon]) -> pd.DataFrame:
    all_of = pd.DataFrame(list(found.values()))
    return pd.DataFrame(
        {
            "silicon": list(found),
            "a layer's small kernels µs": (1e6 * all_of.layer_s).round(1),
            "prefill attention": all_of.attention_efficiency,
            "fewest queries": all_of.fewest_queries.round().astype(int),
            "KV": all_of.kv_efficiency,
            "KV beside prompts": all_of.mixed_kv_efficiency,
        }
    )


def engines(fitted: Fitted) -> pd.DataFrame:
    costs = pd.DataFrame(list(fitted.engines.values()))
    return pd.DataFrame(
        {
            "engine": list(fitted.engines),
            "iteration ms": 1e3 * costs.step_s,
            "with prompts, besides ms": 1e3 * costs.mixed_s,
            "request ms": 1e3 * costs.request_s,
            "prompt ms": 1e3 * costs.chunk_s,
            "all-reduce, times": costs.all_reduce,
        }
    )


def silicon_crossval_page(left_out: Mapping[str, pd.DataFrame]) -> str:
    return page(TEMPLATES / "silicon_crossval.md", left_out=left_out, over_cells=over_cells)
