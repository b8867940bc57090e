"""Long contexts (section 9.3, Fig. 9): hits on a cached prefix of 100,000 tokens, and KV of long
prompts that is streamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from harness.experiments.points import Point
from plots.aqua import STREAMING, SYSTEMS, paged_gb, requests
from plots.figure import Panels, Points, picture
from plots.panels import Look, curves, lines
from plots.runs import config, events, overrides
from plots.style import PALETTE, log_scale

PROMPT_TOKENS = 100_000  # section 9.1
TRACED = 30  # requests, the last ones
SHOWN_SEED, SHOWN_PER_S = 0, 0.2
RUN_S, STEP_S = 120.0, 4.0  # of equal prompts; section 9.3 has ten minutes
HITS = {name: SYSTEMS[name] for name in ("cfs_dram", "cfs_dram_gathered", "aqua")}
RATIOS = {  # TTFT on a hit over AQUA's
    "cfs_dram": Look("block by block", PALETTE[1], "o"),
    "cfs_dram_gathered": Look("gathered", PALETTE[0], "s"),
}
OVERLAP = {"on": "", "off": ", copies first"}


def contexts(points: Points) -> pd.DataFrame:
    """A row for each run; its requests, and its tokens/s over time, of those that are drawn."""
    tables = []
    for point in points:
        if point.experiment == "aqua_fig09a":
            tables += document(point)
            continue
        made = streamed(point)
        tables.append(pd.DataFrame([made]))
        named = {key: made[key] for key in ("system", "overlap", "seed")}
        tables.append(tokens_per_s(point).assign(row="time", **named))
    every = pd.concat(tables, ignore_index=True)
    return pd.concat([every, hit_ratios(every[every.row == "run"])], ignore_index=True)


def document(point: Point) -> list[pd.DataFrame]:
    """A run of requests of which some ask about the document; the first of all computes it."""
    rows, words = requests(point), overrides(point)
    hits = rows.prompt_tokens == PROMPT_TOKENS
    named: dict[str, Any] = {"system": words["system"], "seed": point.seed}
    named["rate_per_s"] = float(words["rate_per_s"])
    traced, hit = rows[-TRACED:], hits[-TRACED:]
    copies = events(point.folder, "transfer")
    found = copies.purpose.str.startswith("prefix in from")
    run = {
        "row": "run", "first_ttft_s": rows.ttft_s.iloc[0], "hits": int(hit.sum()),
        "hit_ttft_s": traced.ttft_s[hit].mean(), "peak_ttft_s": traced.ttft_s.max(),
        "other_ttft_s": traced.ttft_s[~hit].mean(),
        "mechanism": copies.bytes[found].sum() / 1e9,
    }  # fmt: skip
    tables = [pd.DataFrame([named | run])]
    if (point.seed, named["rate_per_s"]) == (SHOWN_SEED, SHOWN_PER_S):
        shown = traced[["ttft_s"]].assign(row="request", order=np.arange(1, TRACED + 1), hit=hit)
        tables.append(shown.assign(**named))
    return tables


def hit_ratios(runs: pd.DataFrame) -> pd.DataFrame:
    """TTFT on a hit over AQUA's, by rate and seed."""
    at = ["rate_per_s", "seed"]
    by_system = {name: of.set_index(at).hit_ttft_s for name, of in runs.groupby("system")}
    ratios = [
        (by_system[name] / by_system["aqua"]).rename("ratio").reset_index().assign(against=name)
        for name in RATIOS
    ]
    return pd.concat(ratios).assign(row="ratio")


def streamed(point: Point) -> dict[str, Any]:
    """A run of equal long prompts, one at a time: nothing in it is random."""
    of, system = requests(point), overrides(point)["system"]
    times = np.concatenate([np.asarray(each) for each in of.token_times_s])
    return {
        "row": "steady", "system": system, "seed": point.seed,
        "overlap": "on" if config(point.folder)["system"]["consumer"]["overlap"] else "off",
        "tokens_per_s": 1 / of.tpot_s.mean(), "config_hash": point.config_hash(),
        "with_prompts_tokens_per_s": len(times) / (times.max() - of.arrival_s.min()),
        "mechanism": paged_gb(point, system),
    }  # fmt: skip


def tokens_per_s(point: Point) -> pd.DataFrame:
    """Of the first RUN_S, in steps of STEP_S; empty steps are of prompts."""
    of = requests(point)
    times = np.concatenate([np.asarray(each) for each in of.token_times_s]) - of.arrival_s.min()
    edges = np.arange(0.0, RUN_S + STEP_S, STEP_S)
    counts, _ = np.histogram(times, edges)
    return pd.DataFrame({"at_s": edges[:-1], "tokens_per_s": counts / STEP_S})


@picture(
    "aqua_fig09", contexts, ("aqua_fig09a", "aqua_fig09b"), shape=(1, 3), size=(12, 4.0),
    quick="rows",
)  # fmt: skip
def fig09(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 9: TTFT of 30 requests, of which three ask about a cached document (a), and tokens/s of
    OPT-30B on long prompts, KV streamed from DRAM and from a neighbour (b). (c) is not in the
    paper: what (a) says at other rates."""
    traced, streams, ratios = axes
    curves(traced, rows[rows.row == "request"], "order", "ttft_s", HITS)
    log_scale(traced, "y")
    traced.set(title="(a) Yi-34B-200K", xlabel="request, in order of arrival", ylabel="TTFT (s)")
    traced.set_ylim(top=20)  # the legend is above the curves
    lines(ratios, rows[rows.row == "ratio"], "rate_per_s", "ratio", RATIOS, by="against")
    ratios.axhline(3.5, color=PALETTE[7], lw=0.8, ls="--")
    ratios.set(title="(c) TTFT on a hit, DRAM over AQUA", xlabel="requests/s", ylim=(0, None))
    for system, look in STREAMING.items():
        for overlap, said in OVERLAP.items():
            of = rows[(rows.row == "time") & (rows.system == system) & (rows.overlap == overlap)]
            line = "-" if overlap == "on" else ":"
            label = look.label + said
            streams.plot(of.at_s, of.tokens_per_s, color=look.colour, ls=line, label=label)
    streams.set(title="(b) OPT-30B, 8,192 tokens", xlabel="seconds", ylabel="tokens/s")
    log_scale(streams, "y")
    for panel in axes:
        panel.legend(loc="best", fontsize="small")
    return (
        f"(a): {SHOWN_PER_S:g} requests/s, seed {SHOWN_SEED}, the last 30 of 70; one in ten asks "
        "about a document of 99,744 tokens that the first one computed. (b): equal prompts, one at "
        "a time; nothing is random. AQUA's 20 prompts are done after 104 s if copies overlap. (c): "
        "mean and range of the seeds; dashed: published."
    )
