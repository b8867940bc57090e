"""The profiler's stable rate of each LLM (section 4.1): its search over runs at the rates to
try, what is free at it, and latencies (Fig. 4) and memory (Fig. 7 b) by rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from harness.errors import RunError
from harness.experiments.points import Point
from harness.files import read_json
from harness.model_spec import ModelSpec
from plots.aqua import requests
from plots.aqua.producers import batches
from plots.conf import read
from plots.figure import Panels, Points, Words, picture, text
from plots.panels import Look, lines
from plots.runs import config, overrides
from plots.style import PALETTE, log_scale
from systems.aqua.profiler.stable_rate import RateConfig, RateSample, StableRate, stable_rate

EXPERIMENTS = ("aqua_rates_low", "aqua_rates_arxiv", "aqua_rates_high")
FIRST_SEED = 100  # the experiments' first seed
SLA_TTFT_S, SLA_TBT_S = 1.0, 0.1  # section 4.1


def stable_rates(points: Points) -> pd.DataFrame:
    """A row for each run, and one for what the search finds among those of one model and seed."""
    samples = pd.DataFrame([sampled(point) for point in points])
    best = [
        found(of, str(name)) | {"seed": seed}
        for (name, seed), of in samples.groupby(["served", "seed"], sort=False)
    ]
    return pd.concat([pd.DataFrame(best).assign(row="best"), samples.assign(row="sample")])


HEAD = ("model", "rule", "stable rate (/s)", "mean TTFT (s)", "P99 TBT (ms)", "free (GB a GPU)")


@text("aqua_table_rates", stable_rates, EXPERIMENTS, head=[*HEAD, "role"])
def table_rates(rows: pd.DataFrame) -> tuple[Words, str]:
    cells = []
    for name, of in rows[rows.row == "best"].groupby("served", sort=False):
        rates, tbt_ms = of.rate_per_s, 1e3 * of.tbt_p99_s.mean()
        rate = f"{rates.mean():.3g} ({rates.min():g} to {rates.max():g})"
        means = [f"{of.ttft_s.mean():.2f}", f"{tbt_ms:.0f}", f"{of.free_gb.mean():.1f}"]
        rule, role = " or ".join(of.rule.unique()), " or ".join(of.role.unique())
        cells.append([str(name), rule, rate, *means, role])
    return cells, (
        "SLA: mean TTFT < 1 s, P99 TBT < 100 ms; steady queue: no rate meets it. Free: of the KV "
        "memory, beside the most held. Mean of the seeds, of rates their range too."
    )


def sampled(point: Point) -> dict[str, Any]:
    """The row of one run at one rate."""
    words, totals = overrides(point), read_json(point.folder / "summary.json")
    rows, engine = requests(point), point.manifest()["engine"]
    blocks = engine["num_kv_blocks"]
    blocks = next(iter(blocks.values())) if isinstance(blocks, dict) else blocks
    model, tokens = ModelSpec(**config(point.folder)["model"]), blocks * engine["block_tokens"]
    free = max(tokens - held_tokens(rows), 0) * model.kv_bytes_per_token / model.tp
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
    """The rate to take where no rate meets the SLA: the highest up to which the mean TTFT stays
    below twice that at the lowest, our reading of a steady queue (section 9.1)."""
    rows = of.sort_values("rate_per_s")
    over = rows.ttft_s >= 2 * rows.ttft_s.iloc[0]
    return float(rows.rate_per_s[~over.cummax()].max())


def searched(of: pd.DataFrame, name: str) -> tuple[StableRate, str]:
    """Does the search of section 4.1 over the rates that were run, and says by which rule: the SLA,
    or where no rate meets it a steady queue."""
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

    bounds = RateConfig(
        ttft_s=SLA_TTFT_S, tbt_p99_s=SLA_TBT_S, min_rate_per_s=low, max_rate_per_s=high,
        binary_step_per_s=2 * step, linear_step_per_s=step,
    )  # fmt: skip
    result = stable_rate(measure, bounds)
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


def profiled(of: pd.DataFrame, name: str) -> dict[str, Any]:
    """What the search finds over all seeds, as `found` says it: the median rate, and the medians of
    the runs at this rate."""
    each = pd.DataFrame([found(rows, name) for _, rows in of.groupby("seed")])
    rate_per_s = round(float(each.rate_per_s.quantile(interpolation="lower")), 6)
    at = of[of.rate_per_s.round(6) == rate_per_s][["ttft_s", "tbt_p99_s", "free_gb"]]
    medians = {str(key): float(value) for key, value in at.median().items()}
    lends = 1e9 * medians["free_gb"] > constants()["producer_above_bytes"]
    told = {"role": "producer" if lends else "consumer", "rule": each["rule"].mode()[0]}
    return {"served": name, "rate_per_s": rate_per_s, **medians, **told}


def constants() -> dict[str, Any]:
    """The profiler's constants."""
    found: dict[str, Any] = read("system/aqua/constants")["profiler"]
    return found


RATES = {
    2.0: Look("2 requests/s", PALETTE[2]),
    2.5: Look("2.5 requests/s", PALETTE[1]),
    3.0: Look("3 requests/s", PALETTE[3]),
}
SHOWN = 300  # requests; the runs have 1,500


def by_rate(points: Points) -> pd.DataFrame:
    """A row for each run, and one for each request of the seed that is drawn."""
    tables = []
    for point in points:
        words = overrides(point)
        if words["served"] != "llama8b_a100" or words["rate_per_s"] not in RATES:
            continue
        rows = requests(point)[:SHOWN][["order", "ttft_s", "tpot_s"]]
        named: dict[str, Any] = {"rate_per_s": float(words["rate_per_s"]), "seed": point.seed}
        named["config_hash"] = point.config_hash()
        tables.append(rows[["ttft_s", "tpot_s"]].mean().to_frame().T.assign(row="mean", **named))
        if point.seed == FIRST_SEED:
            tables.append(rows.assign(row="request", **named))
    return pd.concat(tables, ignore_index=True)


@picture(
    "aqua_fig04", by_rate, ("aqua_rates_high",), shape=(1, 2), size=(9, 3.6), legend=3,
    quick="rows",
)  # fmt: skip
def fig04(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 4: TPOT and TTFT of Llama-3.1-8B on an A100, at the stable rate and above it."""
    titles = {"tpot_s": "(a) TPOT", "ttft_s": "(b) TTFT (dashed: the SLA)"}
    for panel, (column, title) in zip(axes, titles.items(), strict=True):
        lines(panel, rows[rows.row == "request"], "order", column, RATES, by="rate_per_s")
        panel.set(title=title, xlabel="request, in order of arrival", ylabel="seconds")
    axes[1].axhline(SLA_TTFT_S, color="0.4", lw=0.8, ls="--")
    log_scale(axes[1], "y")
    return (
        f"Llama-3.1-8B on an A100, ShareGPT, chunks of 512; the first {SHOWN} requests, seed "
        f"{FIRST_SEED}."
    )


FREE, SHARE = Look("free memory", PALETTE[2], "o"), Look("throughput", PALETTE[1], "s")


def free_memory(points: Points) -> pd.DataFrame:
    used = [point for point in points if overrides(point)["served"] == "llama8b_h100"]
    rates = pd.DataFrame([sampled(point) for point in used]).assign(row="rate")
    return pd.concat([rates, batches("sd-3", 16)], ignore_index=True)


@picture("aqua_fig07", free_memory, ("aqua_rates_high",), shape=(1, 2), size=(9, 3.6), legend=2)
def fig07(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 7: Stable Diffusion 3's throughput and free memory by batch (a), and the memory that
    Llama-3.1-8B leaves free by rate (b), on an H100.

    (a) is no measurement: a line through the published point (conf/producer/sd-3.yaml).
    """
    vision, llama = axes
    share = vision.twinx()
    lines(vision, rows, "batch", "free_gb", {"batch": FREE}, by="row")
    lines(share, rows, "batch", "throughput_share", {"batch": SHARE}, by="row")
    vision.set(title="(a) Stable Diffusion 3 (input)", xlabel="batch")
    share.set(ylabel="share of the throughput's plateau", ylim=(0, 1))
    share.grid(visible=False)
    lines(llama, rows, "rate_per_s", "free_gb", {"rate": FREE}, by="row")
    llama.axvline(5, color="0.5", lw=0.8, ls="--")
    llama.set(title="(b) Llama-3.1-8B, least free KV memory", xlabel="requests/s")
    for panel in axes:
        panel.set(ylabel="free memory (GB)", ylim=(0, None))
    return "(a): a line through the paper's one point. (b): ShareGPT, an H100; dashed: 5/s."
