"""Fig. 9 (b): tokens/s of OPT-30B on a long prompt, KV streamed from DRAM and from a neighbour,
with copies beside computing and without.

(a), cached prefixes, is not drawn: they are not on devices yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import config, overrides, requests, stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_fig09b",)
LABELS = {"flexgen": ("FlexGen, DRAM", PALETTE[1]), "flexgen_aqua": ("AQUA", PALETTE[2])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    for point in points:
        overlap = config(point)["system"]["consumer"]["overlap"]
        of = requests(point)
        rows.append(
            {
                "system": overrides(point)["system"], "overlap": "on" if overlap else "off",
                "seed": 0, "tokens_per_s": 1 / of.tpot_s.mean(),
                "with_prompts_tokens_per_s": of.output_tokens.sum()
                / (of.arrival_s + of.rct_s - of.arrival_s.min()).max(),
            }
        )  # fmt: skip
    table = pd.DataFrame(rows)
    made, (panel,) = figure(1, 1, width=6.5, height=3.6)
    for k, (system, (label, colour)) in enumerate(LABELS.items()):
        for i, overlap in enumerate(("on", "off")):
            row = table[(table.system == system) & (table.overlap == overlap)].iloc[0]
            bar = panel.bar(
                i + 0.4 * k, row.tokens_per_s, width=0.38, color=colour,
                label=label if i == 0 else None,
            )  # fmt: skip
            panel.bar_label(bar, fmt="%.1f")
    panel.set_xticks([0.2, 1.2], ["copies beside computing", "copies, then computing"])
    panel.set(ylabel="tokens/s after the first", title="OPT-30B, 8,192 tokens")
    panel.legend()
    stamp(made, points, "Equal prompts, one at a time; nothing is random. An idle neighbour lends.")
    return publish(made, table, folder, Path(__file__).stem)
