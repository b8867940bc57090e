"""The profiler's stable rate of each LLM (section 4.1), what is free at it, and Figs. 4 and 7 (b)'s
numbers: its search over runs at the rates that it may try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.errors import RunError
from harness.experiments.compose import CONF
from harness.experiments.points import Point
from plots.aqua import config, overrides, requests, summary
from plots.style import text_table
from systems.aqua.profiler.stable_rate import RateConfig, RateSample, StableRate, stable_rate

EXPERIMENTS = ("aqua_rates_low", "aqua_rates_arxiv", "aqua_rates_high")
FIRST_SEED = 100  # of the experiments
SLA_TTFT_S, SLA_TBT_S = 1.0, 0.1  # section 4.1


def table(points: Sequence[Point]) -> pd.DataFrame:
    """A row for each run, and one for what the search finds among those of one model and seed."""
    samples = pd.DataFrame([sampled(point) for point in points])
    best = [
        found(of, str(name)) | {"seed": seed}
        for (name, seed), of in samples.groupby(["served", "seed"], sort=False)
    ]
    return pd.concat([pd.DataFrame(best).assign(row="best"), samples.assign(row="sample")])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    head = [
        "model", "rule", "stable rate (/s)", "mean TTFT (s)", "P99 TBT (ms)", "free (GB a GPU)",
        "role",
    ]  # fmt: skip
    cells = [
        [
            str(name), " or ".join(of.rule.unique()), _range(of.rate_per_s),
            f"{of.ttft_s.mean():.2f}", f"{1e3 * of.tbt_p99_s.mean():.0f}",
            f"{of.free_gb.mean():.1f}", " or ".join(of.role.unique()),
        ]
        for name, of in rows[rows.row == "best"].groupby("served", sort=False)
    ]  # fmt: skip
    return text_table(cells, head), (
        "SLA: mean TTFT < 1 s, P99 TBT < 100 ms; steady queue: no rate meets it. Free: of the KV "
        "memory, beside the most held. Mean of the seeds, of rates their range too."
    )


def _range(rates: pd.Series) -> str:
    return f"{rates.mean():.3g} ({rates.min():g} to {rates.max():g})"


def sampled(point: Point) -> dict[str, Any]:
    """Of one run at one rate."""
    words, totals, made = overrides(point), summary(point), config(point)
    rows = requests(point)
    manifest = point.manifest()
    blocks = manifest["engine"]["num_kv_blocks"]
    blocks = next(iter(blocks.values())) if isinstance(blocks, dict) else blocks
    spec, tokens = made["model"], blocks * manifest["engine"]["block_tokens"]
    token_bytes = 2 * spec["num_layers"] * spec["num_kv_heads"] * spec["head_dim"] * 2
    free = max(tokens - held_tokens(rows), 0) * token_bytes / spec["tp"]
    return {
        "served": words["served"], "seed": point.seed, "config_hash": point.config_hash(),
        "rate_per_s": float(words["rate_per_s"]),
        "ttft_s": totals["ttft_s"]["mean"], "ttft_late_s": rows.ttft_s[-len(rows) // 4 :].mean(),
        "ttft_max_s": rows.ttft_s.max(), "tpot_s": totals["tpot_s"]["mean"],
        "tbt_p99_s": totals["tbt_s"]["p99"], "free_gb": free / 1e9, "kv_tokens": tokens,
    }  # fmt: skip


def held_tokens(rows: pd.DataFrame) -> float:
    """The most tokens whose KV requests held at once, each from its first token to its last."""
    times: list[Any] = []
    changes: list[Any] = []
    each: Iterable[Any] = rows.itertuples()
    for row in each:
        at = np.asarray(row.token_times_s)
        if len(at):
            times += [at, at[-1:]]
            held = np.ones(len(at))
            held[0] += row.prompt_tokens
            changes += [held, [-held.sum()]]
    order = np.argsort(np.concatenate(times), kind="stable")
    return float(np.cumsum(np.concatenate(changes)[order]).max())


def steady(of: pd.DataFrame) -> float:
    """Where no rate meets the SLA: the highest up to which the mean TTFT stays below twice that at
    the lowest, our reading of a steady queue (section 9.1)."""
    rows = of.sort_values("rate_per_s")
    over = rows.ttft_s >= 2 * rows.ttft_s.iloc[0]
    return float(rows.rate_per_s[~over.cummax()].max())


def searched(of: pd.DataFrame, name: str) -> tuple[StableRate, str]:
    """The search of section 4.1 over the rates that were run, and by which rule: the SLA, or where
    no rate meets it a steady queue."""
    rows: Iterable[Any] = of.itertuples()
    tried = {round(row.rate_per_s, 6): row for row in rows}
    # The range and steps of section 4.1's example, or of consumers' lower rates.
    low, high, step = (1.0, 10.0, 0.5) if min(tried) >= 1 else (min(tried), max(tried), 0.05)

    def measure(rate: float) -> RateSample:
        row = tried.get(round(rate, 6))
        if row is None:
            raise RunError(
                f"the profiler's search asks for {name} at {rate:g}/s, which was not run"
            )
        return RateSample(rate, row.ttft_s, row.tbt_p99_s, int(1e9 * row.free_gb))

    result = stable_rate(
        measure,
        RateConfig(
            ttft_s=SLA_TTFT_S, tbt_p99_s=SLA_TBT_S, min_rate_per_s=low, max_rate_per_s=high,
            binary_step_per_s=2 * step, linear_step_per_s=step,
        ),
    )  # fmt: skip
    if result.best is None:
        return StableRate(measure(steady(of)), result.samples), "steady queue"
    return result, "SLA"


def found(of: pd.DataFrame, name: str) -> dict[str, Any]:
    """What `searched` gives, as a row, and the role that follows from it."""
    result, rule = searched(of, name)
    best = result.best
    assert best is not None
    role = "producer" if best.free_bytes > constants()["producer_above_bytes"] else "consumer"
    return {
        "served": name, "rate_per_s": best.rate_per_s, "ttft_s": best.ttft_s,
        "tbt_p99_s": best.tbt_p99_s, "free_gb": best.free_bytes / 1e9, "role": role,
        "tried": len(result.samples), "rule": rule,
    }  # fmt: skip


def constants() -> dict[str, Any]:
    """The profiler's, in conf/system/aqua/constants.yaml."""
    made: dict[str, Any] = yaml.safe_load((CONF / "system/aqua/constants.yaml").read_text())
    found: dict[str, Any] = made["profiler"]
    return found
