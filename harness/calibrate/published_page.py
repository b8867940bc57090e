"""silicon.md and silicon_crossval.md: what published measurements taught of devices and engines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from harness.calibrate.published_fit import FITTED_SETS, Measurements
from harness.calibrate.report import markdown
from harness.calibrate.silicon import Fitted
from harness.cost.hardware import Silicon

OFFLINE_BAR_PCT = 8.0  # median over the offline cells
SHOWN_TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048)


def fit_page(
    seen: Measurements, fitted: Fitted, scored: pd.DataFrame, found: Mapping[str, Silicon]
) -> str:
    offline = scored[scored.measured == "offline"]
    median = float((offline.median_error_pct * offline.cells).sum() / offline.cells.sum())
    verdict = "met" if median <= OFFLINE_BAR_PCT else f"missed by {median - OFFLINE_BAR_PCT:.1f}"
    left, used = int((~seen.fitted).sum()), int(seen.fitted.sum())
    sets = ", ".join(FITTED_SETS)
    return f"""# Silicon and engines, fitted to published measurements

Written by `python -m harness calibrate fit`, which also writes conf/hardware/silicon and
conf/engine/profile/vllm_v1.yaml.

Three kinds of measurements are fitted together:

- {len(seen.offline)} offline batches of LLM-Inference-Bench: vLLM 0.5 and TensorRT-LLM on A100-40GB
  and H100. The source has 1,139. We left out mixtures of experts and other models that the zoo
  lacks, batches that may not have fitted into memory, and cells that are faster than reading the
  weights once per token;
- {len(seen.prefill)} prefills of at least 1,024 tokens from Aegaeon's artifact (A100, H100, H800);
- the mean TPOT of {used} loads below saturation, from {sets}. The other {left} served points are
  held out ([errors](../fidelity/gpu/gpu.md)).

The constants of a chip are common to all three. Each engine has its own constants. The RTX 4090
and RTX PRO 6000 come from LLMServingSim's kernel profiles alone, without a run on these boards.
The H200 has the shares of an H100. B200, L40S, A10 and H20 have the mean of the four. Both are
called `datasheet`. ML.ENERGY's sweeps have no prompt lengths, so we do not use them.

Offline batches, median over the cells of each model: {median:.1f} %; target
{OFFLINE_BAR_PCT:g} %: {verdict}.

{markdown(summed(scored))}

The share of the roofline that products reach depends on the tokens of an iteration, on every
measured device:

{markdown(efficiency(found))}

{markdown(constants(found))}

What an engine adds, in milliseconds, or as a factor:

{markdown(engines(fitted))}
"""


def summed(scored: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, part in scored.groupby(["measured", "chip", "engine"]):
        share = part.cells / part.cells.sum()
        rows.append(
            dict(zip(("measured", "chip", "engine"), key, strict=True))
            | {
                "models": len(part),
                "cells": int(part.cells.sum()),
                "median error %": round(float((share * part.median_error_pct).sum()), 1),
                "signed mean %": round(float((share * part.bias_pct).sum()), 1),
                "worst model": part.model.iloc[int(part.median_error_pct.to_numpy().argmax())],
                "its median %": round(float(part.median_error_pct.max()), 1),
            }
        )
    return pd.DataFrame(rows)


def efficiency(found: Mapping[str, Silicon]) -> pd.DataFrame:
    rows = []
    for name, silicon in found.items():
        shares = np.exp(
            np.interp(
                np.log(SHOWN_TOKENS),
                np.log(silicon.products_tokens),
                np.log(silicon.products_efficiency),
            )
        )
        shown = dict(zip(map(str, SHOWN_TOKENS), shares.round(2), strict=True))
        rows.append({"silicon": name, "basis": silicon.basis, **shown})
    return pd.DataFrame(rows)


def constants(found: Mapping[str, Silicon]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "silicon": name,
                "a layer's small kernels µs": round(1e6 * one.layer_s, 1),
                "prefill attention": round(one.attention_efficiency, 2),
                "fewest queries": round(one.fewest_queries),
                "KV": round(one.kv_efficiency, 2),
                "KV beside prompts": round(one.mixed_kv_efficiency, 2),
            }
            for name, one in found.items()
        ]
    )


def engines(fitted: Fitted) -> pd.DataFrame:
    rows = []
    for name, one in fitted.engines.items():
        rows.append(
            {
                "engine": name,
                "iteration ms": round(1e3 * one["step_s"], 2),
                "with prompts, besides ms": round(1e3 * one["mixed_s"], 2),
                "request ms": round(1e3 * one["request_s"], 4),
                "prompt ms": round(1e3 * one["chunk_s"], 3),
                "all-reduce, times": round(one["all_reduce"], 2),
            }
        )
    return pd.DataFrame(rows)


CROSSVAL = """\
# Silicon and engines, each model and each chip left out

Written by `python -m harness calibrate crossval`. All errors are in percent. Each model, and each
chip, is left out of all data. A chip that is left out is predicted with the other chip's shares,
of its own datasheet. (A device that nobody measured is predicted with the mean shares.) An engine
that ran on one chip only has no prediction for the other chip.
"""


def crossval_page(left_out: Mapping[str, pd.DataFrame]) -> str:
    parts = [CROSSVAL]
    for what, scored in left_out.items():
        for kind, part in scored.groupby("measured"):
            median = float((part.median_error_pct * part.cells).sum() / part.cells.sum())
            parts.append(f"Each {what} left out, {kind}: median {median:.1f}.\n")
        parts.append(markdown(scored) + "\n")
    return "\n".join(parts)
