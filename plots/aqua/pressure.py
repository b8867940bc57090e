"""Fig. 8's burst over rates, and where nobody lends.

All of it follows from the stable rate, which the paper does not print, and the profiler's differs
from seed to seed. With no lender (section 4.1) AQUA runs on DRAM, by each rule of section 7's
fallback, beside vLLM and vLLM + CFS."""

from __future__ import annotations

from typing import Any

import pandas as pd

from plots.aqua import SYSTEMS, paged_gb
from plots.aqua.bursts import phases, summed_up
from plots.aqua.rates import found, sampled
from plots.figure import Panels, Points, Words, picture, text
from plots.panels import lines
from plots.runs import overrides
from plots.style import PALETTE, log_scale

SERVED = "llama70b_tp2_h100"
PEAK, TPOT = "peak_ttft_s", "burst_tpot_s"
# A column, of the first system over the second.
RATIOS = {
    "peak_ttft": (PEAK, "fcfs", "aqua"),
    "peak_ttft_dram": (PEAK, "fcfs", "cfs_dram"),
    "peak_ttft_gathered": (PEAK, "fcfs", "cfs_dram_gathered"),
    "tpot_by_block": (TPOT, "cfs_dram", "aqua"),
    "tpot_gathered": (TPOT, "cfs_dram_gathered", "aqua"),
    "rct_by_block": ("burst_rct_s", "cfs_dram", "fcfs"),
    "rct_aqua": ("burst_rct_s", "aqua", "fcfs"),
}
SHOWN = (  # panels of ratios, and the published number in each
    (
        "(b) peak TTFT, FCFS over each", 20,
        {
            "peak_ttft_dram": SYSTEMS["cfs_dram"],
            "peak_ttft_gathered": SYSTEMS["cfs_dram_gathered"], "peak_ttft": SYSTEMS["aqua"],
        },
    ),
    (
        "(c) TPOT in the burst over AQUA's", 1.5,
        {"tpot_by_block": SYSTEMS["cfs_dram"], "tpot_gathered": SYSTEMS["cfs_dram_gathered"]},
    ),
)  # fmt: skip


def rates(points: Points) -> pd.DataFrame:
    """A row for each run, each ratio at each rate and seed, and for the stable rate of each seed of
    the profiler."""
    runs, samples = [], []
    for point in points:
        words = overrides(point)
        if point.experiment != "aqua_fig08_rates":
            samples += [sampled(point)] if words["served"] == SERVED else []
            continue
        named = {"system": words["system"], "rate_per_s": float(words["rate_per_s"])}
        more = {"seed": point.seed, "mechanism": paged_gb(point, words["system"])}
        runs.append(named | summed_up(phases(point)) | more)
    of_runs = pd.DataFrame(runs)
    stable = [
        found(of, SERVED) | {"seed": seed} for seed, of in pd.DataFrame(samples).groupby("seed")
    ]
    return pd.concat(
        [of_runs.assign(row="run"), *ratios(of_runs), pd.DataFrame(stable).assign(row="stable")]
    )


def ratios(runs: pd.DataFrame) -> list[pd.DataFrame]:
    at = ["rate_per_s", "seed"]
    by_system = {name: of.set_index(at) for name, of in runs.groupby("system")}
    tables = []
    for name, (column, first, second) in RATIOS.items():
        ratio = by_system[first][column] / by_system[second][column]
        tables.append(ratio.rename("ratio").reset_index().assign(row=name))
    return tables


def band(panel: Any, stable: pd.Series) -> None:
    """Marks the profiler's rates: their range, and their median."""
    panel.axvspan(stable.min(), stable.max(), color="0.92", zorder=0, lw=0)
    panel.axvline(stable.quantile(interpolation="lower"), color="0.5", lw=0.8)


@picture(
    "aqua_fig08_rates", rates, ("aqua_fig08_rates", "aqua_rates_low"), shape=(1, 3),
    size=(10, 3.8), legend=4,
)  # fmt: skip
def fig08_rates(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 8's numbers by the rate that its burst doubles."""
    stable = rows[rows.row == "stable"].rate_per_s
    runs = rows[rows.row == "run"]
    peaks, *others = axes
    lines(peaks, runs, "rate_per_s", PEAK, SYSTEMS)
    peaks.set(title="(a) peak TTFT", ylabel="seconds")
    log_scale(peaks, "y")
    for panel, (title, published, looks) in zip(others, SHOWN, strict=True):
        lines(panel, rows, "rate_per_s", "ratio", looks, by="row")
        panel.axhline(published, color=PALETTE[7], lw=0.8, ls="--")
        panel.set(title=title, ylabel="ratio", ylim=(0, None))
    for panel in axes:
        band(panel, stable)
        panel.set(xlabel="requests/s before the burst")
    return (
        "Llama-3.1-70B on two H100, ShareGPT; the rate doubles for a minute. Mean and range of "
        f"{runs.seed.nunique()} seeds. Grey: the profiler's rates over {len(stable)} seeds, line: "
        f"their median, Fig. 8's. Dashed: published.{unfinished(runs)}"
    )


def unfinished(runs: pd.DataFrame) -> str:
    """Which curves' points lack requests that did not finish, in words."""
    said = ""
    for (system, rate), of in runs[runs.num_failed > 0].groupby(["system", "rate_per_s"]):
        told = f"{of.num_failed.sum():g} requests in {of.seed.nunique()} seeds at {rate:g}/s"
        said += f" {SYSTEMS[str(system)].label}: {told} did not finish and are not counted in (c)."
    return said


BASELINES = {"fcfs": "always", "cfs_dram": "never", "cfs_dram_gathered": "never"}
RULE = "fcfs_when_in_dram"
RULES = {
    "any": "while any tensor is in DRAM",
    "all": "while all tensors are in DRAM",
    "never": "never",
}
HEAD = ("system", "first come first served", "peak TTFT (s)", "over vLLM's FCFS", "TPOT (s)")


def bursts(points: Points) -> pd.DataFrame:
    """A row for each run: AQUA's with its rule, and those of Fig. 8's baselines, whose requests are
    the same."""
    rows = []
    for point in points:
        words = overrides(point)
        alone = point.experiment == "aqua_alone"
        system = "aqua_alone" if alone else words["system"]
        if alone or system in BASELINES:
            named = {"row": "run", "system": system, RULE: words.get(RULE), "seed": point.seed}
            more = {"mechanism": paged_gb(point, system), "config_hash": point.config_hash()}
            rows.append(named | summed_up(phases(point)) | more)
    return pd.DataFrame(rows)


@text("aqua_table_alone", bursts, ("aqua_alone", "aqua_fig08"), head=HEAD, quick="rows")
def table_alone(rows: pd.DataFrame) -> tuple[Words, str]:
    """Section 4.1's corner case: peak TTFT, and TPOT in Fig. 8's burst, where all models are
    consumers."""
    by_seed = rows.set_index("seed")
    fcfs = by_seed[by_seed.system == "fcfs"].peak_ttft_s
    lines = [(name, served, by_seed.system == name) for name, served in BASELINES.items()]
    lines += [("aqua_alone", served, by_seed[RULE] == rule) for rule, served in RULES.items()]
    cells = [[SYSTEMS[name].label, served, *told(by_seed[of], fcfs)] for name, served, of in lines]
    return cells, (
        "Fig. 8's burst on Llama-3.1-70B, two H100; mean and range of "
        f"{rows.seed.nunique()} seeds, TPOT in the burst. AQUA gathers its copies. Where nobody "
        "lends, every tensor is in DRAM."
    )


def told(of: pd.DataFrame, fcfs: pd.Series) -> list[str]:
    """A system's peaks, their ratio to FCFS's of the same seed, and its TPOT, in words."""
    ranges = [
        f"{each.mean():.3g} ({each.min():.2g} to {each.max():.2g})"
        for each in (of.peak_ttft_s, of.peak_ttft_s / fcfs)
    ]
    return [*ranges, f"{of.burst_tpot_s.mean():.3f}"]
