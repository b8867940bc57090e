"""Tables 1 and 2: models and KV by our arithmetic, and lengths of the datasets, beside what is
published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from harness.experiments.compose import CONF, ROOT
from harness.model_spec import ModelSpec
from plots.conf import spec
from plots.figure import Points, Words, text
from plots.kunserve.runs import DATASETS

GIB = 2**30
GPU_GIB = 80
# Llama-3.1-405B, config.json; not in conf/model, for nothing serves it here.
LLAMA_405B: dict[str, Any] = {
    "name": "llama3.1-405b", "num_layers": 126, "hidden_size": 16384, "num_heads": 128,
    "intermediate_size": 53248,
}  # fmt: skip
ROWS = {  # GPUs, published size (GB) and share (%)
    "qwen2.5-14b": (1, 28.0, 34.4),
    "llama3.1-70b": (4, 131.0, 41.1),
    "qwen2.5-72b": (4, 136.0, 42.3),
    "llama3.2-90b": (4, 180.0, 56.3),
    "llama3.1-405b": (16, 756.0, 59.1),
}


def model(name: str) -> ModelSpec:
    if name == LLAMA_405B["name"]:
        return replace(spec("llama3.1-70b"), **LLAMA_405B)
    return spec(name)


def memory(points: Points) -> pd.DataFrame:
    rows = []
    for name, (gpus, published_gb, published_share) in ROWS.items():
        size = model(name).weight_bytes / GIB
        share = 100 * size / (gpus * GPU_GIB)
        rows += [
            {"quantity": "size", "model": name, "value": size, "published": published_gb},
            {"quantity": "share", "model": name, "value": share, "published": published_share},
        ]
    rows += [{"quantity": key, "model": "qwen2.5-14b", "value": v} for key, v in kv().items()]
    return pd.DataFrame(rows).assign(inputs="ours")


@text("kunserve_table1", memory, head=["model", "GPUs", "parameters, GiB", "share of memory, %"])
def table1(rows: pd.DataFrame) -> tuple[Words, str]:
    """Table 1: parameters and GPU memory of an instance; the arithmetic of §2.2 and §4.2 on KV."""
    cells = []
    for name, (gpus, *_) in ROWS.items():
        size, share = rows[rows.model == name].iloc[:2].itertuples()
        cells.append(
            [name, str(gpus), f"{size.value:.1f} ({size.published:.0f})",
             f"{share.value:.1f} ({share.published:.1f})"]
        )  # fmt: skip
    return cells, "Ours, and in brackets the published numbers."


def kv() -> dict[str, float]:
    """Sizes of Qwen-2.5-14B's KV: KB a token (§2.2), GB of 64 K tokens, MB of 1 K tokens, and KB of
    q, k and v of one token over all layers (§4.2)."""
    found = spec("qwen2.5-14b")
    token = found.kv_bytes_per_token
    q = found.num_heads * found.head_dim
    qkv = (q + 2 * found.num_kv_heads * found.head_dim) * found.num_layers * found.dtype_bytes
    return {
        "KV of a token (KB)": token / 1024, "KV of 64 K tokens (GB)": 64 * 1024 * token / GIB,
        "KV of 1 K tokens (MB)": 1024 * token / 2**20, "q, k, v of a token (KB)": qkv / 1024,
    }  # fmt: skip


COLUMNS = ("mean", "p50", "p80", "p95", "p99")
PUBLISHED = {
    ("burstgpt", "in"): (603, 400, 1146, 1804, 2009),
    ("burstgpt", "out"): (289, 249, 462, 715, 1161),
    ("azureconv", "in"): (1013, 998, 1159, 4080, 4096),
    ("azureconv", "out"): (247, 202, 411, 451, 585),
    ("agieval_cot", "in"): (237, 128, 556, 619, 651),
    ("agieval_cot", "out"): (390, 363, 450, 578, 698),
}
LEVELS = (0.0, 0.5, 0.8, 0.95, 0.99, 1.0)
NUM_ROWS = 1000
BUNDLED = ROOT / "workloads" / "bundled"
SYNTHETIC = CONF / "experiment" / "kunserve" / "dataset" / "agieval_cot.csv"
FILES = {
    "burstgpt": (BUNDLED / "burstgpt" / "BurstGPT_without_fails_1_first383.csv", None),
    "azureconv": (BUNDLED / "azure_llm_2023" / "AzureLLMInferenceTrace_conv_first10min.csv", 1006),
    "agieval_cot": (SYNTHETIC, None),
}
HEADER = {"Request tokens": "in", "Response tokens": "out"} | {
    "ContextTokens": "in", "GeneratedTokens": "out",
}  # fmt: skip


def agieval_cot() -> pd.DataFrame:
    """NUM_ROWS lengths with Table 2's percentiles, log-linear between, and its means. What lies
    below the median begins where the mean comes out; the longest is as far above P99 as P99 above
    P95. Prompt and output are shuffled apart."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"TIMESTAMP": ["XXX"] * NUM_ROWS}
    for name, side in (("ContextTokens", "in"), ("GeneratedTokens", "out")):
        columns[name] = rng.permutation(_fitted(PUBLISHED["agieval_cot", side]))
    return pd.DataFrame(columns)


def _fitted(published: Sequence[int]) -> npt.NDArray[np.int64]:
    mean, *quantiles = published
    low, high = 1.0, float(quantiles[0])
    while high - low > 1e-6:
        least = (low + high) / 2
        if _tokens(least, quantiles).mean() < mean:
            low = least
        else:
            high = least
    return np.rint(_tokens(low, quantiles)).astype(np.int64)


def _tokens(least: float, quantiles: Sequence[int]) -> npt.NDArray[np.float64]:
    most = 2 * quantiles[-1] - quantiles[-2]
    shares = (np.arange(NUM_ROWS) + 0.5) / NUM_ROWS
    logs = np.log([least, *quantiles, most])
    tokens: npt.NDArray[np.float64] = np.exp(np.interp(shares, LEVELS, logs))
    return tokens


def lengths(dataset: str) -> pd.DataFrame:
    """Prompt (`in`) and output (`out`) tokens of the rows that our runs draw from."""
    path, num_rows = FILES[dataset]
    return pd.read_csv(path, nrows=num_rows).rename(columns=HEADER)[["in", "out"]]


def all_lengths(points: Points) -> pd.DataFrame:
    rows = []
    for (dataset, side), published in PUBLISHED.items():
        found = lengths(dataset)[side]
        ours = (found.mean(), *found.quantile([0.5, 0.8, 0.95, 0.99]))
        inputs = "paper" if FILES[dataset][0] == SYNTHETIC else "ours"
        rows += [
            {"dataset": dataset, "side": side, "column": column, "value": value,
             "published": said, "inputs": inputs}
            for column, value, said in zip(COLUMNS, ours, published, strict=True)
        ]  # fmt: skip
    return pd.DataFrame(rows)


@text("kunserve_table2", all_lengths, head=["tokens, ours (published)", *COLUMNS])
def table2(rows: pd.DataFrame) -> tuple[Words, str]:
    """Table 2: lengths of the three datasets, of ours beside the published ones. AGIEval-CoT is not
    to be had: `agieval_cot` makes SYNTHETIC lengths from the published numbers."""
    cells = [
        [f"{DATASETS[str(dataset)]}, {side}put"]
        + [f"{row.value:.0f} ({row.published})" for row in of_side.itertuples()]
        for (dataset, side), of_side in rows.groupby(["dataset", "side"], sort=False)
    ]
    return cells, (
        "BurstGPT: the 383 rows carried. AzureConv: its first 1,006 rows. AGIEval-CoT: made from "
        "the published numbers."
    )
