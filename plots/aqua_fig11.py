"""Fig. 11: what lending costs Llama-3.1-70B on four GPUs (a), and tokens/s of each of four OPT-30B,
whose KV streams through one of them each (b)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import LENDING, STREAMING, bar_each, overrides, paged_gb, requests
from plots.style import figure

EXPERIMENTS = ("aqua_fig11",)


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([run(point, points) for point in points])
    return pd.concat([rows, added(rows)], ignore_index=True)


def run(point: Point, points: Sequence[Point]) -> dict[str, object]:
    opt, same = requests(point, "opt"), while_streaming(point, points)
    system = overrides(point)["system"]
    return {
        "experiment": point.experiment, "system": system, "seed": point.seed,
        "num_requests": len(same), "mean_tpot_ms": 1e3 * same.tpot_s.mean(),
        "mean_ttft_s": same.ttft_s.mean(), "opt_tokens_per_s": 1 / opt.tpot_s.mean(),
        "mechanism": paged_gb(point, system),
    }  # fmt: skip


def while_streaming(point: Point, points: Sequence[Point]) -> pd.DataFrame:
    """The lender's requests that were served while the borrowers streamed, in every run of the
    seed: which is what sharing is, and the same requests are compared."""
    common: set[int] | None = None
    for each in points:
        if each.seed != point.seed:
            continue
        opt, llama = requests(each, "opt"), requests(each, "llama")
        from_s = opt.arrival_s.min() + opt.ttft_s.min()
        until_s = (opt.arrival_s + opt.rct_s).max()
        during = llama[(llama.arrival_s > from_s) & (llama.arrival_s + llama.rct_s < until_s)]
        ids = set(during.request_id)
        common = ids if common is None else common & ids
    mine = requests(point, "llama")
    return mine[mine.request_id.isin(common or set())]


def added(rows: pd.DataFrame) -> pd.DataFrame:
    """What sharing adds to TPOT, by seed: as a share of the isolated one, and in ms."""
    of = rows.set_index("seed")
    shares, alone = of[of.system == "flexgen_aqua"], of[of.system == "flexgen"]
    return pd.DataFrame(
        {
            "experiment": shares.experiment, "system": "added",
            "tpot_share": shares.mean_tpot_ms / alone.mean_tpot_ms - 1,
            "tpot_ms": shares.mean_tpot_ms - alone.mean_tpot_ms, "mechanism": shares.mechanism,
        }
    ).reset_index()  # fmt: skip


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (llama, opt) = figure(1, 2, width=9, height=3.8)
    bar_each(llama, rows, "mean_tpot_ms", LENDING)
    bar_each(opt, rows, "opt_tokens_per_s", STREAMING)
    llama.set(title="(a) Llama-3.1-70B on 4 GPUs", ylabel="mean TPOT (ms)")
    opt.set(title="(b) each of four OPT-30B, 8,192 tokens", ylabel="tokens/s after the first")
    return made, (
        "Mean and range of the seeds. Copies take memory bandwidth; that they meet all-reduces on "
        "NVLink is not modelled. Same requests in both."
    )
