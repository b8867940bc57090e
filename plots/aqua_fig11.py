"""Fig. 11: what lending costs Llama-3.1-70B on four GPUs (a), and tokens/s of each of four OPT-30B,
whose KV streams through one of them each (b)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import overrides, requests
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig11",)
LENDER = {"flexgen": ("isolated", PALETTE[7]), "flexgen_aqua": ("shares its memory", PALETTE[2])}
BORROWER = {"flexgen": ("FlexGen, DRAM", PALETTE[1]), "flexgen_aqua": ("AQUA", PALETTE[2])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    table = pd.DataFrame([run(point, points) for point in points])
    table = pd.concat([table, differences(table)], ignore_index=True)
    made, axes = figure(1, 2, width=9, height=3.8)
    for panel, looks, column in (
        (axes[0], LENDER, "mean_tpot_ms"), (axes[1], BORROWER, "opt_tokens_per_s"),
    ):  # fmt: skip
        for k, (system, (_, colour)) in enumerate(looks.items()):
            of = table[table.system == system][column]
            bar = panel.bar(k, of.mean(), color=colour, width=0.6)
            panel.plot([k, k], [of.min(), of.max()], color="k", marker="_")
            panel.bar_label(bar, fmt="%.1f", label_type="center")
        panel.set_xticks([0, 1], [label for label, _ in looks.values()])
    axes[0].set(title="(a) Llama-3.1-70B on 4 GPUs", ylabel="mean TPOT (ms)")
    axes[1].set(title="(b) each of four OPT-30B, 8,192 tokens", ylabel="tokens/s after the first")
    stamp(
        made, points, "Copies take memory bandwidth; that they meet all-reduces on NVLink is not "
        "modelled. Same requests in both.",
    )  # fmt: skip
    return publish(made, table, folder, Path(__file__).stem)


def run(point: Point, points: Sequence[Point]) -> dict[str, object]:
    opt, llama = requests(point, "opt"), requests(point, "llama")
    same = llama[llama.request_id.isin(while_streaming(points, point.seed))]
    return {
        "system": overrides(point)["system"], "seed": point.seed, "num_requests": len(same),
        "mean_tpot_ms": 1e3 * same.tpot_s.mean(), "mean_ttft_s": same.ttft_s.mean(),
        "opt_tokens_per_s": 1 / opt.tpot_s.mean(),
    }  # fmt: skip


def while_streaming(points: Sequence[Point], seed: int) -> set[int]:
    """The lender's requests that were served while the borrowers streamed, in every run of the
    seed: which is what sharing is, and the same requests are compared."""
    found: set[int] | None = None
    for point in points:
        if point.seed != seed:
            continue
        opt, llama = requests(point, "opt"), requests(point, "llama")
        from_s = opt.arrival_s.min() + opt.ttft_s.min()
        until_s = (opt.arrival_s + opt.rct_s).max()
        during = llama[(llama.arrival_s > from_s) & (llama.arrival_s + llama.rct_s < until_s)]
        ids = set(during.request_id)
        found = ids if found is None else found & ids
    return found or set()


def differences(table: pd.DataFrame) -> pd.DataFrame:
    """What sharing adds, by seed: a share of the isolated TPOT."""
    of = table.pivot(index="seed", columns="system", values="mean_tpot_ms")
    added = of.flexgen_aqua / of.flexgen - 1
    return pd.DataFrame({"system": "added", "seed": added.index, "tpot_share": added.to_numpy()})
