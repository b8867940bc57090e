"""gpu.md: the errors of published GPU runs replayed, in tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.calibrate import tables

# Mean absolute errors of held-out points, in percent.
TARGETS = {
    "e2e_mean_s": ("E2E, mean", 8.0), "tpot_mean_s": ("TPOT, mean", 8.0),
    "ttft_mean_s": ("TTFT, mean", 15.0), "capacity_per_s": ("capacity", 5.0),
}  # fmt: skip
BOARD_TARGET_PCT = 4.0  # E2E of boards from their kernel profiles alone
# Ours by theirs; they write ITL for the mean time between tokens.
SAME = {
    "e2e_mean_s": "e2e_mean_ms", "ttft_mean_s": "ttft_mean_ms", "tpot_mean_s": "itl_mean_ms",
    "e2e_p99_s": "e2e_p99_ms",
}  # fmt: skip
SHORT = {"e2e_mean_s": "E2E", "ttft_mean_s": "TTFT", "tpot_mean_s": "TPOT", "e2e_p99_s": "E2E P99"}
BESIDE = ("blis-trained-physics", "aiconfigurator-estimate", "vidur")  # in the table of points
REGIMES = ("light", "loaded", "near the knee", "saturated")


def page(
    rows: pd.DataFrame,
    single: pd.DataFrame,
    others: pd.DataFrame,
    lines: Mapping[str, pd.DataFrame],
) -> str:
    """The page made of points.csv, requests.csv, others.csv and curves.csv, the last by run."""
    done = rows[rows.reason == ""]
    held = done[done.held_out]
    return tables.page(
        Path(__file__).with_name("templates") / "gpu.md",
        targets=targets(held, single),
        beside=beside(held, others),
        boards=boards(single),
        by_regime=by_regime(held),
        queues=queues(lines),
        every_point=every_point(done, others),
        left=rows[rows.reason != ""],
        **missed(held, single),
    )


def mean_abs(error: pd.Series) -> float:
    return float(error.dropna().abs().mean())


def targets(held: pd.DataFrame, single: pd.DataFrame) -> pd.DataFrame:
    by_run, of_one = held.set_index("run"), single[single.tp == 1].set_index("run")
    found = [
        (words, by_run[f"{name}_error_pct"].dropna(), target)
        for name, (words, target) in TARGETS.items()
    ]
    found.append(("E2E, boards of one GPU", of_one.sim_e2e_error_pct, BOARD_TARGET_PCT))
    return pd.DataFrame([_target(*each) for each in found])


def _target(words: str, error: pd.Series, target: float) -> dict[str, Any]:
    """`error`: of points, by their runs."""
    size = mean_abs(error)
    worst = int(np.abs(error.to_numpy()).argmax())
    return {
        "held out": words, "points": len(error), "mean abs. error %": round(size, 1),
        "signed mean %": round(float(error.mean()), 1), "target %": target,
        "met": "yes" if size <= target else f"no, by {size - target:.1f}",
        "worst %": round(float(error.iloc[worst]), 1), "worst point": str(error.index[worst]),
    }  # fmt: skip


def matched(rows: pd.DataFrame, others: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Rows with `theirs`, the signed error of each simulator that predicted their `metric`."""
    of_metric = others[others.metric == SAME[metric]]
    keys = ["set", "run", "stage"]
    table = of_metric[[*keys, "simulator", "signed_error_pct"]]
    return rows.merge(table.rename(columns={"signed_error_pct": "theirs"}), on=keys)


def beside(held: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    rows = held[held.set == "eval38"]
    by_simulator: dict[str, dict[str, Any]] = {}
    for metric, words in SHORT.items():
        for name, part in matched(rows, others, metric).groupby("simulator"):
            row = by_simulator.setdefault(str(name), {"simulator": name, "points": len(part)})
            row[words] = round(mean_abs(part.theirs), 1)
            row[f"{words}, ours"] = round(mean_abs(part[f"{metric}_error_pct"]), 1)
    found = pd.DataFrame(list(by_simulator.values())).sort_values("E2E")
    return found.reset_index(drop=True)


def boards(single: pd.DataFrame) -> pd.DataFrame:
    columns: dict[str, Any] = {"run": single.run, "regime": single.regime}
    for metric in ("e2e", "tpot", "ttft"):
        for who, words in {"sim": "ours", "their": "LLMServingSim"}.items():
            columns[f"{metric.upper()} {words} %"] = single[f"{who}_{metric}_error_pct"].round(1)
    columns["E2E each, ours %"] = single.sim_e2e_each_median_pct.round(1)
    columns["E2E each, LLMServingSim %"] = single.their_e2e_each_median_pct.round(1)
    return pd.DataFrame(columns)


def by_regime(held: pd.DataFrame) -> pd.DataFrame:
    found = []
    for regime in REGIMES:
        part = held[held.regime == regime]
        if len(part):
            errors = {SHORT[m]: round(mean_abs(part[f"{m}_error_pct"]), 1) for m in SHORT}
            found.append({"regime": regime, "points": len(part), **errors})
    return pd.DataFrame(found)


def queues(lines: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    found = []
    for run, table in lines.items():
        row: dict[str, Any] = {"run": run}
        for what in ("running", "waiting"):
            apart = table[f"sim_{what}"] - table[what]
            row[f"{what}, difference"] = round(float(np.sqrt((apart**2).mean())), 1)
            row[f"{what}, at most"] = int(table[what].max())
        found.append(row)
    return pd.DataFrame(found)


def every_point(done: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    table = done[["run", "stage", "rate_per_s", "gpu", "regime"]]
    table = table.rename(columns={"rate_per_s": "rate/s"})
    for metric, words in {**SHORT, "capacity_per_s": "capacity"}.items():
        shown = _signed(done[f"{metric}_error_pct"])
        table[words] = shown.where(done.held_out | (shown == ""), "(" + shown + ")")
    theirs = matched(done, others, "e2e_mean_s")
    keys = pd.MultiIndex.from_frame(done[["run", "stage"]])
    for name in BESIDE:
        own = theirs[theirs.simulator == name].set_index(["run", "stage"]).theirs
        table[name[0].upper()] = _signed(own.reindex(keys)).to_numpy()
    return table


def _signed(error: pd.Series) -> pd.Series:
    """Errors as the page shows them; empty where there is none."""
    return error.map("{:+.1f}".format).where(error.notna(), "")


def missed(held: pd.DataFrame, single: pd.DataFrame) -> dict[str, Any]:
    """The numbers of the largest errors, which the page explains."""
    by_run = single.set_index("run")
    qwen = by_run.loc["RTXPRO6000_Qwen3-32B"]
    blis = held[(held.model == "llama3.1-8b") & (held.set == "eval38")]
    return {
        "qwen": qwen.sim_e2e_error_pct,
        "step_ms": 1e3 * (qwen.tpot_mean_s - qwen.sim_tpot_mean_s),
        "ada": by_run.sim_e2e_error_pct["RTX4090_Llama-3.1-8B"],
        "long": held[held.output_tokens > 1000].e2e_mean_s_error_pct.iloc[0],
        "small": held[held.max_num_batched_tokens == 1024].e2e_mean_s_error_pct.min(),
        "a100": held[held.gpu == "a100_sxm"].ttft_mean_s_error_pct.mean(),
        "eight": blis.ttft_mean_s_error_pct.mean(),
    }
