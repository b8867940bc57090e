"""Fig. 10 (b): what lending costs Llama-3.1-8B: its TPOT while OPT-30B's KV streams through its
memory, and while it streams through DRAM, which leaves the lender alone.

(a), image and audio models, is not drawn: no engine of ours runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import overrides, requests, stamp
from plots.style import PALETTE, cdf, figure

EXPERIMENTS = ("aqua_fig10",)
LABELS = {"flexgen": ("isolated", PALETTE[7]), "flexgen_aqua": ("shares its memory", PALETTE[2])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = []
    rows: dict[str, list[Any]] = {}
    for point in points:
        opt, llama = requests(point, "opt"), requests(point, "llama")
        # While the borrower streams, which is what sharing is.
        from_s = opt.arrival_s.min() + opt.ttft_s.min()
        until_s = (opt.arrival_s + opt.rct_s).max()
        during = llama[(llama.arrival_s > from_s) & (llama.arrival_s + llama.rct_s < until_s)]
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
    table = pd.concat([table, differences(table)], ignore_index=True)
    made, axes = figure(1, 2, width=9, height=3.8)
    for k, (system, (label, colour)) in enumerate(LABELS.items()):
        mean = table[table.system == system].groupby("seed").mean_tpot_ms.mean()
        axes[0].bar(k, mean.mean(), color=colour, width=0.6)
        axes[0].errorbar(k, mean.mean(), [[mean.mean() - mean.min()], [mean.max() - mean.mean()]],
                         color="k", capsize=4)  # fmt: skip
        cdf(axes[1], pd.concat(rows[system]).dropna().to_numpy(), color=colour, label=label)
    axes[0].set(title="mean TPOT", ylabel="ms")
    axes[0].set_xticks([0, 1], [label for label, _ in LABELS.values()])
    axes[1].set(title="TPOT of requests")
    axes[1].legend(loc="lower right")
    stamp(
        made, points, "Llama-3.1-8B serves ShareGPT at 5 requests/s; KV of OPT-30B's 8,192 tokens "
        "streams for each of its tokens and takes bandwidth.",
    )  # fmt: skip
    return publish(made, table, folder, Path(__file__).stem)


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """Sharing less isolated, by seed."""
    of = table.pivot(index="seed", columns="system", values="mean_tpot_ms")
    added = of.flexgen_aqua - of.flexgen
    return pd.DataFrame(
        {"system": "difference", "seed": added.index, "mean_tpot_ms": added.to_numpy()}
    )
