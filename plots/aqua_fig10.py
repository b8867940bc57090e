"""Fig. 10: what lending costs.

(a) audio and image models: a bound, by the memory bandwidth that the copies of their borrowers
take, were all of their work bound by it: no engine of ours runs them. (b) Llama-3.1-8B: its TPOT
while OPT-30B's KV streams through its memory, and while it streams through DRAM, which leaves the
lender alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.experiments.points import Point
from harness.location import hbm
from plots.aegaeon import publish
from plots.aqua import WINDOW_S, config, events, overrides, requests
from plots.aqua_fig11 import while_streaming
from plots.aqua_prefix import HARDWARE, MODEL, copy_s, prefix_bytes
from plots.aqua_table_bandwidth import hardware, model
from plots.caption import stamp
from plots.style import PALETTE, cdf, figure

EXPERIMENTS = ("aqua_fig10", "aqua_fig08")
HIT_EVERY_S = 10.0  # a hit in ten requests (section 9.3), of 1 request/s: our choice, and plenty
LABELS = {"flexgen": ("isolated", PALETTE[7]), "flexgen_aqua": ("shares its memory", PALETTE[2])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = []
    rows: dict[str, list[Any]] = {}
    bounds = bounded(points)
    pairs = [point for point in points if point.experiment == "aqua_fig10"]
    for point in pairs:
        opt, llama = requests(point, "opt"), requests(point, "llama")
        during = llama[llama.request_id.isin(while_streaming(pairs, point.seed))]
        system = overrides(point)["system"]
        rows.setdefault(system, []).append(during.tpot_s)
        found.append(
            {
                "system": system, "seed": point.seed, "num_requests": len(during),
                "mean_tpot_ms": 1e3 * during.tpot_s.mean(),
                "mean_ttft_s": during.ttft_s.mean(), "opt_tokens_per_s": 1 / opt.tpot_s.mean(),
            }
        )  # fmt: skip
    table = pd.DataFrame(found)
    table = pd.concat([table, differences(table), bounds], ignore_index=True)
    made, (producers, *axes) = figure(1, 3, width=10, height=3.8)
    lost = 100 * bounds.groupby("system", sort=False).lost_share.max()
    bars = producers.bar(["AudioGen", "images"], [lost.audio, lost.images], color=PALETTE[2])
    producers.bar_label(bars, fmt="< %.2g %%")
    producers.axhline(5, color="0.5", ls="--", lw=0.8)
    producers.set(title="(a) lost, a bound", ylabel="% of throughput")
    for k, (system, (label, colour)) in enumerate(LABELS.items()):
        mean = table[table.system == system].groupby("seed").mean_tpot_ms.mean()
        axes[0].bar(k, mean.mean(), color=colour, width=0.6)
        axes[0].errorbar(k, mean.mean(), [[mean.mean() - mean.min()], [mean.max() - mean.mean()]],
                         color="k", capsize=4)  # fmt: skip
        cdf(axes[1], pd.concat(rows[system]).dropna().to_numpy(), color=colour, label=label)
    axes[0].set(title="(b) mean TPOT", ylabel="ms")
    axes[0].set_xticks([0, 1], ["isolated", "shares"])
    axes[1].set(title="(c) TPOT of the same requests")
    axes[1].legend(loc="upper left")
    stamp(
        made, points, "(a): no run of theirs: bandwidth that a burst's paging (AudioGen) and "
        "prefixes (images) take. (b): 5 requests/s; KV of OPT-30B's 8,192 tokens streams and "
        "takes bandwidth.",
    )  # fmt: skip
    return publish(made, table, folder, Path(__file__).stem)


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """Sharing less isolated, by seed."""
    of = table.pivot(index="seed", columns="system", values="mean_tpot_ms")
    added = of.flexgen_aqua - of.flexgen
    return pd.DataFrame(
        {"system": "difference", "seed": added.index, "mean_tpot_ms": added.to_numpy()}
    )


def bounded(points: Sequence[Point]) -> pd.DataFrame:
    """The most of a producer's throughput that its borrower's copies can take: the share of time in
    which they move, times the share of its memory bandwidth that they have then.

    AudioGen lends to Llama-3.1-70B, whose paging in Fig. 8's burst is counted; image models lend to
    Yi-34B-200K, whose prefix comes once in HIT_EVERY_S (section 9.3)."""
    device = hardware(HARDWARE)
    spec = model(MODEL)
    share = device.nvlink_copy_bytes_per_s / device.memory_bandwidth_bytes_per_s
    hit_s = copy_s(prefix_bytes(spec), hbm(0, 1), None)
    rows: list[dict[str, object]] = [
        {"system": "images", "seed": 0, "lost_share": share * hit_s / HIT_EVERY_S}
    ]
    for point in points:
        if point.experiment == "aqua_fig08" and overrides(point)["system"] == "aqua":
            start_s = config(point)["workload"]["arrivals"]["burst"]["start_s"]
            moves = events(point, "kv_move")
            moves = moves[moves.end_s.between(start_s, start_s + WINDOW_S)] if len(moves) else moves
            copied = float(moves.bytes.sum()) if len(moves) else 0.0
            lost = copied / WINDOW_S / device.memory_bandwidth_bytes_per_s
            rows.append({"system": "audio", "seed": point.seed, "lost_share": lost})
    return pd.DataFrame(rows)
