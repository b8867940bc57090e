"""Table 2: lengths of the three datasets, of ours beside the published ones.

AGIEval-CoT is not to be had: `agieval_cot` makes SYNTHETIC lengths from the published numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.compose import CONF, ROOT
from harness.experiments.points import Point
from plots.kunserve import DATASETS
from plots.style import text_table

EXPERIMENTS: tuple[str, ...] = ()
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


def table(points: Sequence[Point]) -> pd.DataFrame:
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


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    cells = [
        [f"{DATASETS[str(dataset)]}, {side}put"]
        + [f"{row.value:.0f} ({row.published})" for row in of_side.itertuples()]
        for (dataset, side), of_side in rows.groupby(["dataset", "side"], sort=False)
    ]
    return text_table(cells, ["tokens, ours (published)", *COLUMNS]), (
        "BurstGPT: the 383 rows carried. AzureConv: its first 1,006 rows. AGIEval-CoT: made from "
        "the published numbers."
    )
