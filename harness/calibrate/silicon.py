"""What published measurements say of devices, and of the engines that ran on them, fitted together.

Three kinds of measurement, each of its own engine: whole batches served offline (vLLM 0.5 and
TensorRT-LLM), long prefills of an eager engine, and loads below saturation that vLLM V1 served. A
device's silicon is what they have in common; an engine's costs are what they do not. Errors are
logarithms, robustly, and every constant keeps near START by a spread of one e-fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from harness.calibrate import zoo
from harness.calibrate.fit import soft_l1
from harness.calibrate.profiles import Floats
from harness.calibrate.published import cached_tokens
from harness.cost.hardware import Silicon
from harness.cost.served import EngineCosts
from harness.cost.silicon import Kernels, stacked, work

NOISE = 0.04  # errors below this count squared, above it linearly
KNOTS = (1.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 8192.0)
ROUGHNESS = 0.15  # the second difference of log efficiency, from knot to knot, that costs one NOISE
FEWEST_QUERIES = 256.0  # of a chunk's attention: kernel profiles of two boards have 180 and 230
# vLLM's default capture sizes (resolved_config in LLMServingSim's meta.json, vLLM 0.19).
GRAPH_TOKENS = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
# The launches of a layer of vLLM's compiled model, about ten kernels: 4 µs each, an estimate. A
# layer of more tokens than the largest graph takes longer on every GPU here.
LAUNCH_LAYER_S = 4e-5
SEQUENCE_S = 5e-7  # sampling: RTX PRO 6000's profile
# A device's constants: first guess, least and greatest value.
DEVICE = {
    **{f"products_{k:g}": (0.75, 0.2, 0.98) for k in KNOTS},
    "layer_s": (2e-5, 2e-6, 1e-4), "attention": (0.35, 0.1, 0.9), "kv": (0.75, 0.3, 0.98),
    "mixed_kv": (0.6, 0.3, 1.0), "sequence_layer_s": (2e-7, 1e-8, 2e-6),
}  # fmt: skip
ENGINE = {
    "step_s": (5e-4, 1e-5, 1e-2), "request_s": (1e-5, 1e-7, 3e-4), "chunk_s": (5e-5, 1e-6, 2e-3),
    "mixed_s": (3e-4, 1e-6, 5e-3), "all_reduce": (1.0, 0.2, 5.0),
}  # fmt: skip
V1, EAGER = "vllm_v1", "eager"
# The chip that a measured board has.
CHIPS = {"h100_sxm": "h100", "h800_sxm": "h100", "a100_sxm": "a100", "a100_40gb": "a100"}
# How many independent measurements a kind counts for, however many it has.
WEIGHTS = {"offline": 200.0, "prefill": 40.0, "served": 200.0}
Constants = Mapping[str, float]


@dataclass(frozen=True)
class Fitted:
    """Constants by chip and by engine."""

    chips: dict[str, Constants]
    engines: dict[str, Constants]

    def silicon(self, chip: str) -> Silicon:
        found = self.chips[chip]
        return Silicon(
            basis="served batches",
            products_tokens=list(KNOTS),
            products_efficiency=[found[f"products_{k:g}"] for k in KNOTS],
            layer_s=found["layer_s"],
            attention_efficiency=found["attention"],
            fewest_queries=FEWEST_QUERIES,
            kv_efficiency=found["kv"],
            mixed_kv_efficiency=found["kv"] * found["mixed_kv"],
            sequence_layer_s=found["sequence_layer_s"],
            sequence_s=SEQUENCE_S,
        )

    def costs(self, engine: str, path_s: float) -> EngineCosts:
        found = dict(self.engines[engine])
        return EngineCosts(
            all_reduce_factor=found.pop("all_reduce"),
            launch_layer_s=LAUNCH_LAYER_S,
            graph_tokens=list(GRAPH_TOKENS),
            path_s=path_s,
            **found,
        )


class Rows:
    """Measurements of one kind on one chip by one engine."""

    def __init__(self, kind: str, chip: str, engine: str, table: pd.DataFrame) -> None:
        self.kind, self.chip, self.engine, self.table = kind, chip, engine, table
        keys = list(zip(table.model, table.tp, table.device, strict=True))
        works = {key: work(zoo.sharded(key[0], int(key[1])), zoo.device(key[2])) for key in keys}
        self.work = stacked([works[key] for key in keys])
        measured = {"offline": "latency_s", "prefill": "prefill_s", "served": "tpot_mean_s"}
        self.seconds = table[measured[kind]].to_numpy(np.float64)
        self.columns = {
            str(name): table[name].to_numpy(np.float64)
            for name in table
            if pd.api.types.is_numeric_dtype(table[name])
        }

    def predicted_s(self, fitted: Fitted) -> Floats:
        engine = fitted.engines[self.engine]
        kernels = self.work.on(fitted.silicon(self.chip), engine["all_reduce"])
        how = {"offline": offline_s, "prefill": prefill_s, "served": steady_tpot_s}[self.kind]
        return how(kernels, engine, self.columns)

    def errors(self, fitted: Fitted) -> Floats:
        """The logarithms of predicted over measured times."""
        found: Floats = np.log(self.predicted_s(fitted) / self.seconds)
        return found


def padded(tokens: Floats) -> Floats:
    """`tokens`, padded to the next of GRAPH_TOKENS, if there is one."""
    graphs = np.array(GRAPH_TOKENS, np.float64)
    place = np.minimum(np.searchsorted(graphs, tokens), len(graphs) - 1)
    found: Floats = np.maximum(tokens, graphs[place])
    return found


def prefill_s(k: Kernels, engine: Constants, rows: Mapping[str, Floats]) -> Floats:
    """The time of one iteration of `batch` whole prompts."""
    n, batch = rows["input_len"], rows["batch"]
    seconds = k.iteration_s(n * batch, batch) + k.attend_s * batch * n * (n + 1) / 2
    host_s = engine["step_s"] + engine["mixed_s"] + engine["chunk_s"] * batch
    found: Floats = seconds + host_s + engine["request_s"] * batch
    return found


def offline_s(k: Kernels, engine: Constants, rows: Mapping[str, Floats]) -> Floats:
    """The time of a batch that is prefilled, in iterations of as many whole prompts as MOST_TOKENS
    hold, and then decoded."""
    n, batch, output = rows["input_len"], rows["batch"], rows["output_len"]
    together = np.minimum(batch, np.maximum(1, np.floor(4096 / n)))
    first = prefill_s(k, engine, {"input_len": n, "batch": together}) * batch / together
    context = batch * (n + output / 2)
    step_s = k.iteration_s(padded(batch), batch) + k.context_s * context
    step_s = step_s + engine["step_s"] + engine["request_s"] * batch
    found: Floats = first + (output - 1) * step_s
    return found


def steady_tpot_s(k: Kernels, engine: Constants, rows: Mapping[str, Floats]) -> Floats:
    """Time per output token under a load below saturation.

    As many decodes run as Little's law says of the measured times; prompts join an iteration as
    Poisson arrivals in its measured length. Cached prompts compute what is left of them.
    """
    prompt, output, rate = rows["prompt_tokens"], rows["output_tokens"], rows["rate_per_s"]
    running = np.maximum(1, rate * rows["tpot_mean_s"] * (output - 1))
    cached = np.where(rows["prefix_caching"] > 0, cached_tokens(prompt), 0.0)
    context = running * (prompt + output / 2)
    arrivals = rate * rows["tpot_mean_s"]
    share, total = np.exp(-arrivals), np.zeros_like(rate)
    for chunks in range(12):
        tokens = running + chunks * (prompt - cached)
        seconds = k.iteration_s(padded(tokens), running + chunks)
        pairs = chunks * k.pairs(cached, prompt - cached)
        if chunks:
            seconds = seconds + k.mixed_context_s * context + engine["mixed_s"]
        else:
            seconds = seconds + k.context_s * context
        seconds = seconds + k.attend_s * pairs + engine["chunk_s"] * chunks
        total += share * (seconds + engine["step_s"] + engine["request_s"] * (running + chunks))
        share = share * arrivals / (chunks + 1)
    return total


def fit(rows: Sequence[Rows]) -> Fitted:
    """The constants of every chip and engine in `rows`."""
    chips, engines = sorted({r.chip for r in rows}), sorted({r.engine for r in rows})
    parts = [(c, DEVICE) for c in chips] + [(e, ENGINE) for e in engines]
    start, low, high = (
        np.log([limits[i] for _, names in parts for limits in names.values()]) for i in range(3)
    )
    counts = {kind: sum(len(r.seconds) for r in rows if r.kind == kind) for kind in WEIGHTS}

    def unpack(x: Floats) -> Fitted:
        values = iter(np.exp(x).tolist())
        found = {whose: {name: next(values) for name in names} for whose, names in parts}
        return Fitted({c: found[c] for c in chips}, {e: found[e] for e in engines})

    def residuals(x: Floats) -> Floats:
        fitted = unpack(x)
        errors = [
            soft_l1(r.errors(fitted) / NOISE) * np.sqrt(WEIGHTS[r.kind] / counts[r.kind])
            for r in rows
        ]
        shapes = [
            np.diff(np.log([fitted.chips[chip][f"products_{k:g}"] for k in KNOTS]), 2) / ROUGHNESS
            for chip in chips
        ]
        return np.concatenate([*errors, *shapes, x - start])

    return unpack(least_squares(residuals, start, bounds=(low, high), x_scale=0.3).x)
